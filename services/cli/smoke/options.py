"""What `furlong smoke` was asked for, and the recipe that follows from it."""

import json
from dataclasses import dataclass
from pathlib import Path

from services.cli.run_folder import RunFolder
from services.common.config.loading import load_recipe, recipe_from_table
from services.common.config.recipe import Recipe
from services.common.errors import ConfigError, InvalidInputError


@dataclass(frozen=True, kw_only=True)
class SmokeOptions:
    """The command's options; None and empty mean not given."""

    recipe_path: Path | None = None
    """--recipe"""
    overrides: tuple[str, ...] = ()
    """--set, in order."""
    steps: int | None = None
    """--steps"""
    seed: int | None = None
    """--seed"""
    name: str | None = None
    """--name"""
    prompt_data: Path | None = None
    """--prompt-data"""
    input_key: str | None = None
    """--input-key"""
    label_key: str | None = None
    """--label-key"""
    evidence_path: Path | None = None
    """--json"""
    is_resume: bool = False
    """--resume"""


def new_recipe(options: SmokeOptions) -> Recipe:
    """The recipe of a new run: file, then --set, then the other options; paths in it are absolute.

    Raises:
        ConfigError: the recipe cannot be read or cannot run.
    """
    overrides = [*options.overrides, *_option_overrides(options)]
    recipe = load_recipe(options.recipe_path, overrides)
    data = recipe.data.model_copy(
        update={
            "prompt_data": _absolute(recipe.data.prompt_data),
            "held_out_data": _absolute(recipe.data.held_out_data),
        }
    )
    model = recipe.model.model_copy(update={"path": _absolute(recipe.model.path)})
    files = {name: _absolute(value) for name, value in recipe.security.model_dump().items()}
    security = recipe.security.model_copy(update=files)
    return recipe.model_copy(update={"data": data, "model": model, "security": security})


def resumed_recipe(options: SmokeOptions, folder: RunFolder) -> Recipe:
    """The recipe that the run was started with, with --steps as the new goal when given.

    Raises:
        ConfigError: other options were given, there is no such run, or the run has its steps behind it.
        InvalidInputError: the saved recipe cannot be read.
    """
    _refuse_other_options(options)
    folder.require_resumable()
    try:
        table = json.loads(folder.recipe_path.read_text())
    except ValueError as error:
        raise InvalidInputError(f"{folder.recipe_path}: is no JSON ({error}); start a new run") from error
    if options.steps is not None:
        table["run"]["steps"] = options.steps
    recipe = recipe_from_table(table)
    done = len(folder.read_steps())
    if folder.evidence_path.exists() and done >= recipe.run.steps:
        raise ConfigError(
            f"--resume: run {recipe.run.name!r} has {done} steps behind it and {recipe.run.steps} are wanted; "
            f"give --steps above {done}, or leave --resume out to start anew"
        )
    return recipe


def run_name(options: SmokeOptions) -> str:
    """Name of the run to resume."""
    return options.name or Recipe().run.name


def _option_overrides(options: SmokeOptions) -> list[str]:
    values: dict[str, str | int | None] = {
        "run.steps": options.steps,
        "run.seed": options.seed,
        "run.name": options.name,
        "data.prompt_data": str(options.prompt_data) if options.prompt_data else None,
        "data.input_key": options.input_key,
        "data.label_key": options.label_key,
    }
    # JSON's strings are TOML's: a name such as 2024 or true stays a string.
    return [f"{key}={json.dumps(value)}" for key, value in values.items() if value is not None]


def _refuse_other_options(options: SmokeOptions) -> None:
    given = {
        "--recipe": options.recipe_path is not None,
        "--set": bool(options.overrides),
        "--seed": options.seed is not None,
        "--prompt-data": options.prompt_data is not None,
        "--input-key": options.input_key is not None,
        "--label-key": options.label_key is not None,
    }
    names = [name for name, is_given in given.items() if is_given]
    if names:
        raise ConfigError(
            f"--resume goes on with the recipe of the run, but {' and '.join(names)} would change it; "
            "leave it out, or leave --resume out to start a new run"
        )


def _absolute(path: str) -> str:
    return str(Path(path).absolute()) if path else ""
