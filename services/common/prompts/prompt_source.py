"""Where a run's prompts come from: the built-in additions or a user's file, split once and ordered by a seed."""

import random
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Protocol

from services.common.config.run import DataConfig
from services.common.errors import InvalidInputError
from services.common.prompts.addition import (
    Addition,
    held_out_additions,
    is_held_out,
    parse_question,
    split_digest,
    split_key,
    train_additions,
)
from services.common.prompts.chat import render_question
from services.common.prompts.demonstrations import AdditionDemonstrations, DemonstrationSource
from services.common.prompts.jsonl import PromptRow, read_prompt_file
from services.common.prompts.tokenizer import Tokenizer
from services.common.records import Prompt


class PromptSource(Protocol):
    """All prompts of a run. Invariant: no held-out prompt is ever at a position."""

    @property
    def held_out(self) -> Sequence[Prompt]:
        """The prompts to evaluate on, always in the same order; at least one."""
        ...

    @property
    def num_train_prompts(self) -> int:
        """Prompts of one epoch."""
        ...

    def prompt_at(self, position: int) -> Prompt:
        """The prompt of a position in the endless order: each epoch is its own seeded permutation."""
        ...


class SplitPrompts:
    """A prompt source over two lists."""

    def __init__(self, *, train: Sequence[Prompt], held_out: Sequence[Prompt], seed: int) -> None:
        self._train = tuple(train)
        self._held_out = tuple(held_out)
        # Two epochs are in use at once while one gives way to the next.
        self._epoch_order = lru_cache(maxsize=2)(lambda epoch: _permutation(len(self._train), seed, epoch))

    @property
    def held_out(self) -> Sequence[Prompt]:
        """The prompts to evaluate on."""
        return self._held_out

    @property
    def num_train_prompts(self) -> int:
        """Prompts of one epoch."""
        return len(self._train)

    def prompt_at(self, position: int) -> Prompt:
        """The prompt of a position in the endless order."""
        epoch, offset = divmod(position, len(self._train))
        return self._train[self._epoch_order(epoch)[offset]]


def open_prompt_source(data: DataConfig, tokenizer: Tokenizer, *, seed: int) -> PromptSource:
    """The prompts that the recipe names: a user's file, or the built-in additions.

    Raises:
        ConfigError: a file cannot be read.
        InvalidInputError: a prompt breaks the contract; the message names its line.
    """
    if data.prompt_data:
        return file_prompts(data, tokenizer, seed=seed)
    return addition_prompts(tokenizer, seed=seed)


def open_demonstrations(preset: str, tokenizer: Tokenizer, *, seed: int) -> DemonstrationSource | None:
    """Demonstrations for the warm start of a preset; None for a model that starts as it is.

    The arithmetic model starts from its built-in task, also when it goes on with a user's file.
    """
    return AdditionDemonstrations(tokenizer, seed=seed) if preset == "tiny-task" else None


def addition_prompts(tokenizer: Tokenizer, *, seed: int) -> SplitPrompts:
    """The built-in task.

    Raises:
        InvalidInputError: the tokenizer cannot express it.
    """
    return SplitPrompts(
        train=[_addition_prompt(addition, tokenizer) for addition in train_additions()],
        held_out=[_addition_prompt(addition, tokenizer) for addition in held_out_additions()],
        seed=seed,
    )


def file_prompts(data: DataConfig, tokenizer: Tokenizer, *, seed: int) -> SplitPrompts:
    """A user's prompts; the same prompt text is always on one side of the split only.

    Raises:
        ConfigError: a file cannot be read.
        InvalidInputError: a line breaks the contract, or the split leaves one side empty.
    """
    path = Path(data.prompt_data)
    rows = _read(path, data, tokenizer)
    if data.held_out_data:
        train, held_out = rows, _read(Path(data.held_out_data), data, tokenizer)
        _check_disjoint(train, held_out)
    else:
        train, held_out = _split(rows, path)
    return SplitPrompts(train=[row.prompt for row in train], held_out=[row.prompt for row in held_out], seed=seed)


def _addition_prompt(addition: Addition, tokenizer: Tokenizer) -> Prompt:
    text = render_question(addition.question)
    return Prompt(
        text=text,
        token_ids=tokenizer.encode(text),
        label=str(addition.total),
        source=f"addition:{addition.question}",
    )


def _read(path: Path, data: DataConfig, tokenizer: Tokenizer) -> list[PromptRow]:
    return read_prompt_file(
        path,
        tokenizer=tokenizer,
        input_key=data.input_key,
        label_key=data.label_key,
        max_prompt_tokens=data.max_prompt_tokens,
    )


def _row_key(row: PromptRow) -> str:
    """Additions split as the built-in ones do: the warm start has seen no held-out pair then."""
    addition = parse_question(row.question)
    return row.prompt.text if addition is None else split_key(addition)


def _split(rows: Sequence[PromptRow], path: Path) -> tuple[list[PromptRow], list[PromptRow]]:
    """Train and held-out rows; in a file so small that a side would be empty, one prompt crosses over."""
    keys = sorted({_row_key(row) for row in rows}, key=split_digest)
    if len(keys) < 2:
        raise InvalidInputError(
            f"{path}: has {len(keys)} distinct prompt, but one is needed to train and another to evaluate; "
            "add prompts or set data.held_out_data"
        )
    held_out_keys = {key for key in keys if is_held_out(key)} or {keys[0]}
    if len(held_out_keys) == len(keys):
        held_out_keys.remove(keys[-1])
    train = [row for row in rows if _row_key(row) not in held_out_keys]
    held_out = [row for row in rows if _row_key(row) in held_out_keys]
    return train, held_out


def _check_disjoint(train: Sequence[PromptRow], held_out: Sequence[PromptRow]) -> None:
    train_sources = {row.prompt.text: row.prompt.source for row in train}
    for row in held_out:
        if row.prompt.text in train_sources:
            raise InvalidInputError(
                f"{row.prompt.source}: this held-out prompt is also {train_sources[row.prompt.text]} of the training "
                "data; remove it from one of them"
            )


def _permutation(length: int, seed: int, epoch: int) -> list[int]:
    order = list(range(length))
    random.Random(f"prompts/{seed}/{epoch}").shuffle(order)
    return order
