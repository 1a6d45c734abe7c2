"""What the engine process asks the weight loader inside each scheduler rank, and what the loader answers.

A command travels in one small uint8 tensor of SGLang's weight update request, because that is all its custom loaders
get. SGLang reports success whatever the loader did, so each answer is a file in a private folder named in the command.
"""

import os
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

import torch
from pydantic import TypeAdapter, ValidationError

from services.common.errors import InvalidInputError, TransferError
from services.weights.transfer import EngineRankLayout, StagedRank

TENSOR_NAME = "furlong.weight_command"
"""Name of the one tensor of a command."""


class Operation(Enum):
    """What to do with staged pieces."""

    VERIFY = "verify"
    """Check that all pieces are intact and fit; change nothing."""
    WRITE = "write"
    """Copy all pieces into the live parameters."""
    DIGEST = "digest"
    """Compare the live parameters with the pieces' digests."""


@dataclass(frozen=True, kw_only=True)
class InspectTask:
    """Compare live parameters with a layout; zero those that pieces will not fill completely."""

    layout: EngineRankLayout
    """The rank's layout."""


@dataclass(frozen=True, kw_only=True)
class PiecesTask:
    """Something about the pieces of a version."""

    operation: Operation
    """What."""
    staged: StagedRank
    """The rank's pieces."""


@dataclass(frozen=True, kw_only=True)
class WeightCommand:
    """One request to one rank, executed for each model of the rank in turn."""

    ticket: str
    """Unique among the engine's commands."""
    folder: str
    """Private folder for the answers."""
    rank: int
    """Rank within the engine."""
    task: InspectTask | PiecesTask
    """What to do."""


@dataclass(frozen=True, kw_only=True)
class WeightAnswer:
    """How a command went in one model of one rank."""

    rank: int
    """Rank within the engine."""
    model: str
    """"target" or "draft"."""
    problem: str
    """Empty if all is well, else one line."""
    num_mismatches: int
    """DIGEST: destinations whose live bytes differ from the piece; otherwise 0."""


_COMMAND = TypeAdapter(WeightCommand)
_ANSWER = TypeAdapter(WeightAnswer)


def encode_command(command: WeightCommand) -> torch.Tensor:
    """The command as a uint8 tensor."""
    return torch.frombuffer(bytearray(_COMMAND.dump_json(command)), dtype=torch.uint8)


def decode_command(tensor: torch.Tensor) -> WeightCommand:
    """The command of a uint8 tensor.

    Raises:
        InvalidInputError: it holds none.
    """
    try:
        return _COMMAND.validate_json(tensor.cpu().numpy().tobytes())
    except ValidationError as error:
        raise InvalidInputError(f"weight command of {tensor.numel()} bytes is unreadable: {error}") from error


def write_answer(command: WeightCommand, answer: WeightAnswer) -> None:
    """Puts the answer where `read_answers` finds it, whole or not at all."""
    path = _answer_path(Path(command.folder), command.ticket, answer.rank, answer.model)
    partial = path.with_suffix(".partial")
    partial.write_bytes(_ANSWER.dump_json(answer))
    os.replace(partial, path)


def read_answers(folder: Path, ticket: str, *, ranks: list[int], models: tuple[str, ...]) -> list[WeightAnswer]:
    """The answer of each model of each rank to a command that has ended; removes them.

    Raises:
        TransferError: one is missing.
    """
    answers: list[WeightAnswer] = []
    for rank in ranks:
        for model in models:
            path = _answer_path(folder, ticket, rank, model)
            try:
                answers.append(_ANSWER.validate_json(path.read_bytes()))
            except (OSError, ValidationError) as error:
                raise TransferError(
                    f"the {model} model of engine rank {rank} left no answer to weight command {ticket}; see the "
                    "engine's log and restart the rollout service"
                ) from error
            path.unlink()
    return answers


def _answer_path(folder: Path, ticket: str, rank: int, model: str) -> Path:
    return folder / f"{ticket}-{rank}-{model}.json"
