"""The policy as the training loop sees it, on every rank.

Invariant: every rank calls every collective method the same number of times in the same order, with as many
micro-batches as every other rank (an empty share still takes part with zero-weight batches).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch

from services.trainer.batch import PackedBatch
from services.weights.transfer import SourceShard


@dataclass(frozen=True, kw_only=True)
class TokenStatistics:
    """What the policy says about the labels of one micro-batch. Where masked the values are meaningless."""

    logprobs: torch.Tensor
    """[T] log-probability of the label at the sampling temperature; carries gradient in training."""
    entropies: torch.Tensor
    """[T] entropy of the next-token distribution in nats; carries gradient in training."""


@dataclass(frozen=True, kw_only=True)
class LossSums:
    """A loss as sums, so that it is independent of any split; one adapter divides once by the global count."""

    loss_sum: torch.Tensor
    """[] sum over the micro-batch, with gradient."""
    metric_sums: dict[str, float]
    """Sums of whatever is reported."""


LossFunction = Callable[[TokenStatistics, PackedBatch, int], LossSums]
"""(statistics, micro-batch, index of the micro-batch in this call) -> sums. Pure."""


@dataclass(frozen=True, kw_only=True)
class UpdateFigures:
    """One optimizer step, reduced over all ranks."""

    gradient_norm: float
    """Norm before clipping."""
    mtp_loss: float
    """Mean cross-entropy of the MTP layer; 0 when it is not trained."""
    metric_sums: dict[str, float]
    """The loss function's metric sums, over all micro-batches of all ranks."""


@dataclass(frozen=True, kw_only=True)
class OwnedShard:
    """A block of a hub tensor in this rank's memory."""

    shard: SourceShard
    """What it is."""
    tensor: torch.Tensor
    """The live values, of the shape of shard.box.sizes; a view or a copy made now."""


class Policy(Protocol):
    """The model, its optimizer and its layout on this rank."""

    @property
    def data_parallel_rank(self) -> int:
        """This rank's place among the data-parallel replicas."""
        ...

    @property
    def data_parallel_size(self) -> int:
        """Number of data-parallel replicas."""
        ...

    @property
    def device(self) -> torch.device:
        """Where micro-batches are wanted and statistics come from."""
        ...

    def statistics(self, batches: Sequence[PackedBatch]) -> list[TokenStatistics]:
        """Collective. Statistics of each micro-batch, without gradient."""
        ...

    def update(
        self,
        batches: Sequence[PackedBatch],
        loss_function: LossFunction,
        *,
        global_count: float,
        lr: float,
        mtp_lr: float,
        weight_decay: float,
    ) -> UpdateFigures:
        """Collective. One optimizer step on the sum of the losses over all ranks, divided by global_count once.

        The MTP layer is trained on the same labels by cross-entropy, detached from the trunk, when it is enabled.
        """
        ...

    def keep_reference(self) -> None:
        """Collective. Keeps a copy of the trunk as it is now: the reference of KL terms."""
        ...

    def reference_logprobs(self, batches: Sequence[PackedBatch]) -> list[torch.Tensor]:
        """Collective. [T] of each micro-batch under the reference, without gradient.

        Raises:
            StateConflictError: no reference was kept.
        """
        ...

    def reset_optimizer(self) -> None:
        """Collective. Forgets the optimizer's moments and step count."""
        ...

    def owned_shards(self) -> list[OwnedShard]:
        """The hub-named blocks this rank owns, of target and MTP layer, in a fixed order."""
        ...

    def save(self, folder: Path, *, with_optimizer: bool) -> None:
        """Collective. Writes the model, and the optimizer if asked, readable under another layout of ranks."""
        ...

    def load(self, folder: Path, *, with_optimizer: bool) -> None:
        """Collective. Reads what save wrote.

        Raises:
            InvalidInputError: the folder holds no complete checkpoint of this model.
        """
        ...

    def sum_over_ranks(self, values: dict[str, float]) -> dict[str, float]:
        """Collective. Sums over the data-parallel replicas, each counted once."""
        ...

    def broadcast_bytes(self, data: bytes | None) -> bytes:
        """Collective. Rank 0's bytes on every rank; the others pass None."""
        ...

    def gather_bytes(self, data: bytes) -> list[bytes] | None:
        """Collective. Every rank's bytes in rank order on rank 0; None elsewhere."""
        ...
