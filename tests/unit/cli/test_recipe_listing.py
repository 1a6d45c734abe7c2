"""`furlong recipe` prints TOML that reads back as the same recipe, with every key explained."""

import tomllib
from pathlib import Path

from services.cli.recipe_listing import recipe_toml
from services.common.config.loading import load_recipe, recipe_from_table
from services.common.config.recipe import Recipe


def test_the_listing_reads_back_as_the_same_recipe(tmp_path: Path) -> None:
    recipe = recipe_from_table({"run": {"name": "a.b", "seed": 3}, "trainer": {"optimizer": {"betas": [0.5, 0.9]}}})
    path = tmp_path / "recipe.toml"
    path.write_text(recipe_toml(recipe))
    assert load_recipe(path) == recipe


def test_every_key_has_its_docstring_above_it() -> None:
    lines = recipe_toml(Recipe()).splitlines()
    keys = [number for number, line in enumerate(lines) if " = " in line and not line.startswith("#")]
    assert len(keys) > 80
    assert all(lines[number - 1].startswith("# ") for number in keys)
    position = lines.index("steps = 40")
    assert lines[position - 1] == "# Training steps of the run."


def test_nested_sections_have_dotted_names() -> None:
    table = tomllib.loads(recipe_toml(Recipe()))
    assert table["rollout"]["engine"]["speculation"]["num_draft_tokens"] == 2
