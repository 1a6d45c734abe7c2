"""Prints a recipe as TOML in which every key has its docstring above it: reference and starting point in one."""

import json
from collections.abc import Iterator

from services.common.config.base import Section


def recipe_toml(recipe: Section) -> str:
    """The recipe as TOML that `--recipe` reads back; each key is preceded by what it means."""
    return "\n".join(_section_lines(recipe, ())).lstrip("\n") + "\n"


def _section_lines(section: Section, names: tuple[str, ...]) -> Iterator[str]:
    values = {name: value for name, value in section if not isinstance(value, Section)}
    if names and values:
        yield ""
        yield f"[{'.'.join(names)}]"
    for name, value in values.items():
        yield from _comment(section, name)
        yield f"{name} = {_toml_value(value)}"
    for name, value in section:
        if isinstance(value, Section):
            yield from _section_lines(value, (*names, name))


def _comment(section: Section, name: str) -> Iterator[str]:
    for line in _description(type(section), name).splitlines():
        yield f"# {line.strip()}"


def _description(section: type[Section], name: str) -> str:
    """The docstring of the key; of a key that only has another default here, that of the class it comes from."""
    fields = [
        base.model_fields[name] for base in section.__mro__ if issubclass(base, Section) and name in base.model_fields
    ]
    return next((field.description for field in fields if field.description), "")


def _toml_value(value: object) -> str:
    if isinstance(value, tuple):
        return "[" + ", ".join(_toml_value(item) for item in value) + "]"
    # JSON's strings, numbers and booleans are TOML's.
    return json.dumps(value)
