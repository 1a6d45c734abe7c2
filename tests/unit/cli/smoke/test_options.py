"""From options to a recipe, and what a resumed run accepts."""

import json
from pathlib import Path

import pytest

from services.cli.run_folder import RunFolder
from services.cli.smoke.options import SmokeOptions, new_recipe, resumed_recipe
from services.common.config.loading import recipe_from_table
from services.common.errors import ConfigError
from tests.unit.cli.sample_records import make_report


def test_options_win_over_set_and_set_over_the_file(tmp_path: Path) -> None:
    path = tmp_path / "recipe.toml"
    path.write_text("[run]\nsteps = 1\nseed = 1\nname = 'file'\n")
    options = SmokeOptions(recipe_path=path, overrides=("run.seed=2", "run.steps=2"), steps=3, name="2024")
    run = new_recipe(options).run
    assert (run.steps, run.seed, run.name) == (3, 2, "2024")


def test_paths_become_absolute_because_services_run_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    options = SmokeOptions(
        prompt_data=Path("my.jsonl"), input_key="q", label_key="a", overrides=("data.held_out_data=h.jsonl",)
    )
    data = new_recipe(options).data
    assert data.prompt_data == str(tmp_path / "my.jsonl")
    assert data.held_out_data == str(tmp_path / "h.jsonl")
    assert (data.input_key, data.label_key) == ("q", "a")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            SmokeOptions(recipe_path=Path("/no/such.toml")),
            "recipe /no/such.toml: cannot be read (No such file or directory); give an existing .toml file",
        ),
        (
            SmokeOptions(overrides=("trainer.rank=2",)),
            "recipe: unknown key 'trainer.rank' (value 2); `furlong recipe` lists the known ones",
        ),
        (
            SmokeOptions(overrides=("trainer.parallel.tp=2",)),
            "recipe: trainer.ranks is 1, but tp 2 x pp 1 x cp 1 needs a multiple of 2; "
            "set trainer.ranks=2 or make trainer.parallel smaller",
        ),
        (
            SmokeOptions(overrides=("steps",)),
            "--set 'steps' is no assignment; write --set section.key=value",
        ),
        (
            SmokeOptions(steps=0),
            "recipe: run.steps is 0: Input should be greater than or equal to 1",
        ),
        (
            SmokeOptions(overrides=("model.preset=tiny-byte",)),
            'recipe: model.preset "tiny-byte" has no built-in prompts; set data.prompt_data to a .jsonl file',
        ),
    ],
)
def test_a_recipe_that_cannot_work_is_one_line(options: SmokeOptions, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        new_recipe(options)
    assert str(caught.value) == message


def saved_run(tmp_path: Path, *, num_steps: int, is_complete: bool) -> RunFolder:
    folder = RunFolder(tmp_path, "smoke")
    folder.open_new()
    recipe = recipe_from_table({"run": {"steps": 10, "seed": 4}})
    folder.recipe_path.write_text(json.dumps(recipe.model_dump(mode="json")))
    folder.deployment_path.write_text("{}")
    for step in range(num_steps):
        folder.append_step(make_report(step))
    if is_complete:
        folder.evidence_path.write_text("{}")
    return folder


def test_a_resumed_run_has_its_saved_recipe_and_may_get_a_new_goal(tmp_path: Path) -> None:
    folder = saved_run(tmp_path, num_steps=7, is_complete=False)
    assert resumed_recipe(SmokeOptions(is_resume=True), folder).run.steps == 10
    recipe = resumed_recipe(SmokeOptions(is_resume=True, steps=20), folder)
    assert (recipe.run.steps, recipe.run.seed) == (20, 4)


def test_a_resumed_run_refuses_another_recipe(tmp_path: Path) -> None:
    folder = saved_run(tmp_path, num_steps=7, is_complete=False)
    with pytest.raises(ConfigError) as caught:
        resumed_recipe(SmokeOptions(is_resume=True, seed=1, overrides=("a=b",)), folder)
    assert str(caught.value) == (
        "--resume goes on with the recipe of the run, but --set and --seed would change it; "
        "leave it out, or leave --resume out to start a new run"
    )


def test_a_complete_run_needs_a_further_goal(tmp_path: Path) -> None:
    folder = saved_run(tmp_path, num_steps=10, is_complete=True)
    with pytest.raises(ConfigError) as caught:
        resumed_recipe(SmokeOptions(is_resume=True), folder)
    assert str(caught.value) == (
        "--resume: run 'smoke' has 10 steps behind it and 10 are wanted; "
        "give --steps above 10, or leave --resume out to start anew"
    )
