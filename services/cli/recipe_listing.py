"""Prints a recipe as TOML in which every key has its docstring above it: reference and starting point in one."""

import json
from collections.abc import Iterator

from pydantic.fields import FieldInfo

from services.common.config.base import Section


def recipe_toml(recipe: Section) -> str:
    """The recipe as TOML that `--recipe` reads back; each key is preceded by what it means."""
    return "\n".join(_section_lines(recipe, ())).lstrip("\n") + "\n"


def _section_lines(section: Section, names: tuple[str, ...]) -> Iterator[str]:
    fields = type(section).model_fields
    values = {name: value for name, value in section if not isinstance(value, Section)}
    if names and values:
        yield ""
        yield f"[{'.'.join(names)}]"
    for name, value in values.items():
        yield from _comment(fields[name])
        yield f"{name} = {_toml_value(value)}"
    for name, value in section:
        if isinstance(value, Section):
            yield from _section_lines(value, (*names, name))


def _comment(field: FieldInfo) -> Iterator[str]:
    for line in (field.description or "").splitlines():
        yield f"# {line.strip()}"


def _toml_value(value: object) -> str:
    if isinstance(value, tuple):
        return "[" + ", ".join(_toml_value(item) for item in value) + "]"
    # JSON's strings, numbers and booleans are TOML's.
    return json.dumps(value)
