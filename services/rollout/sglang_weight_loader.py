"""Executes weight commands inside each SGLang scheduler process, on its own parameters.

SGLang calls `execute_weight_command` in the main thread of each tensor-parallel rank, for the draft model first and
then for the target, between two forward passes.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from math import prod

import torch
from torch import nn

from services.common.errors import FurlongError, TransferError
from services.rollout.weight_commands import (
    InspectTask,
    Operation,
    WeightAnswer,
    WeightCommand,
    decode_command,
    write_answer,
)
from services.weights.segment import Segment, open_segment
from services.weights.tensor_memory import digest_bytes, digest_tensor, tensor_view
from services.weights.transfer import EngineRankLayout, EngineTensor, PieceDestination, StagedPiece, StagedRank

logger = logging.getLogger(__name__)

LOADER_NAME = f"{__name__}.execute_weight_command"
"""What SGLang's custom_weight_loader and load_format want."""
SHARED_WITH_TARGET = frozenset({"model.embed_tokens.weight", "lm_head.weight"})
"""Parameters of the draft that are the target's."""


def execute_weight_command(model: nn.Module, named_tensors: Sequence[tuple[str, torch.Tensor]]) -> None:
    """Does what the command in the one tensor says and leaves an answer file.

    Never raises: an exception here would end the scheduler and with it the engine.
    """
    try:
        command = decode_command(named_tensors[0][1])
        write_answer(command, _answer(model, command))
    except Exception:
        # The missing answer tells the engine process.
        logger.exception("weight command left without an answer")


def _answer(model: nn.Module, command: WeightCommand) -> WeightAnswer:
    """The outcome of the command in this model; a failure of any kind is part of it."""
    role = "draft" if type(model).__name__.endswith("NextN") else "target"
    problem, num_mismatches = "", 0
    try:
        num_mismatches = _execute(_LiveModel(model, role), command)
    except FurlongError as error:
        problem = str(error)
    except Exception as error:
        logger.exception("weight command failed", extra={"ticket": command.ticket})
        problem = f"{type(error).__name__}: {error}"
    return WeightAnswer(rank=command.rank, model=role, problem=problem, num_mismatches=num_mismatches)


def _execute(live: "_LiveModel", command: WeightCommand) -> int:
    task = command.task
    if isinstance(task, InspectTask):
        live.inspect(task.layout)
        return 0
    if task.operation is Operation.DIGEST:
        return live.count_mismatches(task.staged)
    segment = open_segment(task.staged.segment, is_writable=True)
    try:
        steps: dict[Operation, Callable[[StagedRank, Segment], None]] = {
            Operation.VERIFY: live.verify,
            Operation.WRITE: live.write,
        }
        steps[task.operation](task.staged, segment)
    finally:
        segment.close()
    return 0


class _LiveModel:
    """One model of the rank and its parameters by name."""

    def __init__(self, model: nn.Module, role: str) -> None:
        self._role = role
        self._parameters = {name: value.data for name, value in model.named_parameters(remove_duplicate=False)}

    def inspect(self, layout: EngineRankLayout) -> None:
        """Returns when layout and parameters agree, with zeros in all parameters that have unfilled elements.

        Raises:
            TransferError: a parameter is missing on either side, or differs in shape or dtype.
        """
        tensors = [tensor for tensor in layout.tensors if tensor.model == self._role]
        ignored = SHARED_WITH_TARGET if self._role == "draft" else frozenset()
        unknown = sorted(set(self._parameters) - {tensor.name for tensor in tensors} - ignored)
        if unknown:
            raise TransferError(f"the {self._role} model has {unknown[0]}, which the layout lacks; it is no GLM-4.5")
        for tensor in tensors:
            self._check(tensor.name, tensor.shape, tensor.dtype)
        for tensor in tensors:
            if _num_filled(tensor) < prod(tensor.shape):
                self._parameters[tensor.name].zero_()

    def verify(self, staged: StagedRank, segment: Segment) -> None:
        """Returns when every piece of this model has its digest and fits where it goes; nothing is written.

        Raises:
            TransferError: a piece that does not.
        """
        for piece in staged.pieces:
            destinations = self._destinations(piece)
            for destination in destinations:
                self._check_fit(piece, destination)
            if destinations:
                end = piece.offset_bytes + piece.size_bytes
                seen = digest_bytes(segment.view[piece.offset_bytes : end])
                if seen != piece.digest:
                    raise TransferError(
                        f"staged piece for {destinations[0].name} has digest {seen}, wanted {piece.digest}; "
                        "prepare the version again"
                    )

    def write(self, staged: StagedRank, segment: Segment) -> None:
        """Copies every piece of this model into the live parameters."""
        for piece in staged.pieces:
            source = tensor_view(segment.view, offset_bytes=piece.offset_bytes, shape=piece.shape, dtype=piece.dtype)
            for live in self._live_blocks(piece):
                live.copy_(source.view(live.shape))

    def count_mismatches(self, staged: StagedRank) -> int:
        """Destinations of this model whose live bytes do not have their piece's digest."""
        return sum(digest_tensor(live) != piece.digest for piece in staged.pieces for live in self._live_blocks(piece))

    def _destinations(self, piece: StagedPiece) -> list[PieceDestination]:
        return [destination for destination in piece.destinations if destination.model == self._role]

    def _live_blocks(self, piece: StagedPiece) -> Iterator[torch.Tensor]:
        for destination in self._destinations(piece):
            yield self._parameters[destination.name][destination.box.slices]

    def _check(self, name: str, shape: tuple[int, ...], dtype: str) -> None:
        live = self._parameters.get(name)
        seen = "nothing" if live is None else f"{_dtype(live)} {list(live.shape)}"
        if seen != f"{dtype} {list(shape)}":
            raise TransferError(
                f"the {self._role} model has {seen} as {name}, the layout wants {dtype} {list(shape)}; the model or "
                "SGLang's version differs from what the layout describes"
            )

    def _check_fit(self, piece: StagedPiece, destination: PieceDestination) -> None:
        live = self._parameters.get(destination.name)
        box = destination.box
        fits = (
            live is not None
            and len(box.starts) == live.dim()
            and all(s >= 0 and s + n <= m for s, n, m in zip(box.starts, box.sizes, live.shape, strict=True))
            and _dtype(live) == piece.dtype
            and box.num_elements == prod(piece.shape)
            and piece.size_bytes == box.num_elements * live.element_size()
        )
        if not fits:
            seen = "nothing" if live is None else f"{_dtype(live)} {list(live.shape)}"
            raise TransferError(
                f"a piece of {piece.dtype} {list(piece.shape)} goes to {box.starts} + {box.sizes} of "
                f"{destination.name}, but the {self._role} model has {seen} there; register the engine's layout again"
            )


def _num_filled(tensor: EngineTensor) -> int:
    return sum(part.destination.num_elements for part in tensor.slices)


def _dtype(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
