"""Everything that can be known to be wrong before a process starts is found here, in one line each."""

from pathlib import Path

from services.cli.machine import MachineFacts, check_machine
from services.common.config.recipe import Recipe
from services.common.errors import ConfigError, UnavailableError
from services.common.prompts.prompt_source import PromptSource, open_prompt_source
from services.common.prompts.tokenizer import Tokenizer
from services.common.redis_connection import open_redis
from services.common.tiny_model.making import make_tiny_model
from services.reward.graders.specification import GraderNameError, require_allowed


def require_machine(facts: MachineFacts, recipe: Recipe) -> None:
    """Returns when the machine can run the recipe.

    Raises:
        ConfigError: it lacks something; the first unmet need.
    """
    checks = check_machine(facts, engines=recipe.rollout.replicas, trainer_ranks=recipe.trainer.ranks)
    for check in checks:
        if not check.is_met:
            raise ConfigError(check.message)


def require_queue_server(url: str) -> None:
    """Returns when the server of the recipe answers; without one the embedded server will start.

    Raises:
        ConfigError: it does not answer or refuses.
    """
    if not url:
        return
    try:
        open_redis(url, timeout_seconds=3.0).close()
    except UnavailableError as error:
        raise ConfigError(str(error)) from error


def require_grader(recipe: Recipe) -> None:
    """Returns when the recipe's grader exists and may be used.

    Raises:
        ConfigError: it does not.
    """
    try:
        require_allowed(recipe.reward.grader, recipe.reward.external_graders)
    except GraderNameError as error:
        raise ConfigError(f"reward.grader: {error}") from error


def prepare_model(recipe: Recipe, cache_directory: Path) -> Path:
    """The folder of the recipe's model; a preset is made in the cache.

    Raises:
        ConfigError: the folder lacks a file that the services read.
    """
    if recipe.model.preset:
        folder = cache_directory / "models" / f"{recipe.model.preset}-{recipe.run.seed}"
        make_tiny_model(recipe.model.preset, seed=recipe.run.seed, folder=folder)
        return folder
    folder = Path(recipe.model.path)
    for name in ("config.json", "tokenizer.json"):
        if not (folder / name).is_file():
            raise ConfigError(f"model.path {folder} has no {name}; give a folder with config.json and tokenizer.json")
    return folder


def require_prompts(recipe: Recipe, model_directory: Path) -> PromptSource:
    """The prompts of the recipe, every line read and encoded.

    Raises:
        ConfigError: the file cannot be read.
        InvalidInputError: a line is bad; the message names it.
    """
    tokenizer = Tokenizer.from_folder(model_directory)
    return open_prompt_source(recipe.data, tokenizer, seed=recipe.run.seed)
