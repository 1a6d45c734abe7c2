"""Reads a recipe: TOML file, then `a.b=c` overrides, then one validation."""

import hashlib
import json
import tomllib
from collections.abc import Sequence
from pathlib import Path

from pydantic import BaseModel, ValidationError

from services.common.config.recipe import Recipe
from services.common.errors import ConfigError

TomlTable = dict[str, object]

ALGORITHM_SECTION = ("trainer", "algorithm")
"""The only section whose keys depend on its type."""


def load_recipe(path: Path | None, overrides: Sequence[str] = ()) -> Recipe:
    """The recipe of a TOML file with overrides applied; without a file, of the defaults.

    Args:
        overrides: "a.b=c" each; c is read as TOML, and as a plain string when it is no TOML value.

    Raises:
        ConfigError: no such file, bad TOML, an unknown key, or a recipe that cannot run; one line.
    """
    table = _read_table(path) if path else {}
    for override in overrides:
        _apply_override(table, override)
    return recipe_from_table(table)


def recipe_from_table(table: TomlTable) -> Recipe:
    """The validated recipe of a nested table.

    Raises:
        ConfigError: an unknown key or a recipe that cannot run; one line.
    """
    try:
        return Recipe.model_validate(table)
    except ValidationError as error:
        raise ConfigError("recipe: " + "; ".join(_explain(item) for item in error.errors())) from error


def config_digest(recipe: Recipe) -> str:
    """Sixteen hex digits that change exactly when a value of the recipe changes."""
    canonical = json.dumps(recipe.model_dump(mode="json"), sort_keys=True)
    return hashlib.sha256(canonical.encode()).hexdigest()[:16]


def _read_table(path: Path) -> TomlTable:
    try:
        return tomllib.loads(path.read_text())
    except OSError as error:
        raise ConfigError(f"recipe {path}: cannot be read ({error.strerror}); give an existing .toml file") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"recipe {path}: is no valid TOML: {error}") from error


def _apply_override(table: TomlTable, override: str) -> None:
    key, separator, text = override.partition("=")
    names = key.strip().split(".")
    if not separator or not all(names):
        raise ConfigError(f"--set {override!r} is no assignment; write --set section.key=value")
    for name in names[:-1]:
        inner = table.setdefault(name, {})
        if not isinstance(inner, dict):
            raise ConfigError(f"--set {override!r}: {name!r} is a value, not a section")
        table = inner
    table[names[-1]] = _read_value(text.strip())


def _read_value(text: str) -> object:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _explain(item: object) -> str:
    assert isinstance(item, dict)
    where, value = _key(item["loc"]), item["input"]
    if item["type"] == "extra_forbidden":
        return f"unknown key {where!r} (value {value!r}); `furlong recipe` lists the known ones"
    if item["type"] == "union_tag_invalid":
        context = item["ctx"]
        return f"{where}.type is {context['tag']!r}: Input should be one of {context['expected_tags']}"
    message = str(item["msg"]).removeprefix("Value error, ")
    if not where:
        return message
    # A rule about several keys names their values itself.
    return f"{where}: {message}" if isinstance(value, dict | BaseModel) else f"{where} is {value!r}: {message}"


def _key(location: tuple[str | int, ...]) -> str:
    """The key in dots, without the name of the variant that pydantic puts between a section and its key."""
    names = [str(part) for part in location]
    if tuple(names[:2]) == ALGORITHM_SECTION:
        del names[2:3]
    return ".".join(names)
