"""A policy of one small table, for tests of the loop: exact, deterministic, without Megatron.

The next token depends on the current one alone: logits = table[token]. Its optimizer is plain gradient descent.
"""

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from services.common.errors import InvalidInputError, StateConflictError
from services.trainer.batch import PackedBatch
from services.trainer.policy import LossFunction, OwnedShard, TokenStatistics, UpdateFigures
from services.weights.transfer import Box, SourceShard

_TABLE = "lm_head.weight"
_FILE = "policy.safetensors"


class FakePolicy:
    """A Policy on one rank.

    Example: after `update` with lr 1 and the loss -sum(logprobs) / 1, table row r has moved by
    (one-hot of the label - softmax(row r)) / temperature for each label that follows token r.
    """

    def __init__(self, *, vocab_size: int, temperature: float = 1.0, seed: int = 0) -> None:
        generator = torch.Generator().manual_seed(seed)
        self._table = torch.randn(vocab_size, vocab_size, generator=generator).requires_grad_()
        self._reference: torch.Tensor | None = None
        self._temperature = temperature
        self.num_updates = 0
        """Calls of update since the last reset of the optimizer."""
        self.num_resets = 0
        """Calls of reset_optimizer."""

    @property
    def data_parallel_rank(self) -> int:
        """0."""
        return 0

    @property
    def data_parallel_size(self) -> int:
        """1."""
        return 1

    @property
    def device(self) -> torch.device:
        """The CPU."""
        return torch.device("cpu")

    def keep_reference(self) -> None:
        """Keeps a copy of the table."""
        self._reference = self._table.detach().clone()

    @torch.no_grad()
    def reference_logprobs(self, batches: Sequence[PackedBatch]) -> list[torch.Tensor]:
        """[T] of each micro-batch under the kept table.

        Raises:
            StateConflictError: none was kept.
        """
        if self._reference is None:
            raise StateConflictError("log-probabilities of a reference are wanted, but none was kept; keep one first")
        return [self._statistics_of(self._reference, batch).logprobs for batch in batches]

    @torch.no_grad()
    def statistics(self, batches: Sequence[PackedBatch]) -> list[TokenStatistics]:
        """Statistics of each micro-batch, without gradient."""
        return [self._statistics(batch) for batch in batches]

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
        """One step of gradient descent; there is no MTP layer, so mtp_lr changes nothing."""
        self._table.grad = None
        sums: dict[str, float] = defaultdict(float)
        for index, batch in enumerate(batches):
            losses = loss_function(self._statistics(batch), batch, index)
            (losses.loss_sum / global_count).backward()  # type: ignore[no-untyped-call]
            for name, value in losses.metric_sums.items():
                sums[name] += value
        gradient = torch.zeros_like(self._table) if self._table.grad is None else self._table.grad
        with torch.no_grad():
            self._table.mul_(1 - lr * weight_decay).sub_(lr * gradient)
        self.num_updates += 1
        return UpdateFigures(gradient_norm=float(gradient.norm()), mtp_loss=0.0, metric_sums=dict(sums))

    def reset_optimizer(self) -> None:
        """Counts the call; gradient descent has no memory."""
        self.num_resets += 1
        self.num_updates = 0

    def owned_shards(self) -> list[OwnedShard]:
        """The table, as the output head of the hub's naming."""
        shape = tuple(self._table.shape)
        box = Box(starts=(0, 0), sizes=shape)
        return [OwnedShard(shard=SourceShard(tensor=_TABLE, tensor_shape=shape, box=box), tensor=self._table.detach())]

    def save(self, folder: Path, *, with_optimizer: bool) -> None:
        """Writes the table and the number of updates; gradient descent has no more state."""
        folder.mkdir(parents=True, exist_ok=True)
        save_file({_TABLE: self._table.detach()}, folder / _FILE, metadata={"num_updates": str(self.num_updates)})

    def load(self, folder: Path, *, with_optimizer: bool) -> None:
        """Reads what save wrote.

        Raises:
            InvalidInputError: the folder holds no table of this vocabulary.
        """
        try:
            table = load_file(folder / _FILE)[_TABLE]
        except (OSError, SafetensorError, KeyError) as error:
            raise InvalidInputError(
                f"{folder}: holds no checkpoint ({error}); give a folder that save wrote"
            ) from error
        if table.shape != self._table.shape:
            raise InvalidInputError(
                f"{folder}: the table has shape {tuple(table.shape)}, {tuple(self._table.shape)} is wanted; "
                "give a checkpoint of this vocabulary"
            )
        with torch.no_grad():
            self._table.copy_(table)

    def sum_over_ranks(self, values: dict[str, float]) -> dict[str, float]:
        """The values."""
        return dict(values)

    def broadcast_bytes(self, data: bytes | None) -> bytes:
        """The bytes."""
        assert data is not None, "rank 0 always has the bytes"
        return data

    def gather_bytes(self, data: bytes) -> list[bytes] | None:
        """The bytes alone."""
        return [data]

    def _statistics(self, batch: PackedBatch) -> TokenStatistics:
        return self._statistics_of(self._table, batch)

    def _statistics_of(self, table: torch.Tensor, batch: PackedBatch) -> TokenStatistics:
        logprobs = torch.log_softmax(table[batch.token_ids] / self._temperature, dim=-1)
        entropies = -(logprobs.exp() * logprobs).sum(dim=-1)
        return TokenStatistics(logprobs=logprobs.gather(1, batch.labels[:, None]).squeeze(1), entropies=entropies)
