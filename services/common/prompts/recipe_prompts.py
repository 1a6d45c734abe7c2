"""The prompts a recipe asks for."""

from pathlib import Path

from services.common.config.recipe import Recipe
from services.common.prompts.prompt_source import PromptFiles, SplitPrompts, addition_prompts, file_prompts
from services.common.prompts.tokenizer import Tokenizer


def recipe_prompts(recipe: Recipe, tokenizer: Tokenizer) -> SplitPrompts:
    """The recipe's file of prompts, or the built-in additions when it names none.

    Raises:
        ConfigError: a file cannot be read.
        InvalidInputError: a line breaks the contract.
    """
    data, seed = recipe.data, recipe.run.seed
    if not data.prompt_data:
        return addition_prompts(tokenizer, seed=seed)
    files = PromptFiles(
        prompt_data=Path(data.prompt_data),
        held_out_data=Path(data.held_out_data) if data.held_out_data else None,
        input_key=data.input_key,
        label_key=data.label_key,
        max_prompt_tokens=data.max_prompt_tokens,
    )
    return file_prompts(files, tokenizer, seed=seed)
