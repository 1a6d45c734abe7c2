"""A random micro-batch of equally long sequences, and a policy that knows its log-probabilities.

Legend: B sequences, C tokens of each, T = B C.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from services.trainer.batch import PackedBatch
from services.trainer.policy import TokenStatistics

_MASKED_SHARE = 0.1


@dataclass(frozen=True, kw_only=True)
class BenchBatch:
    """What a loss is run on."""

    num_sequences: int
    """B."""
    num_columns: int
    """C."""
    packed: PackedBatch
    """The micro-batch; a tenth of its tokens is masked."""
    logprobs: torch.Tensor
    """[T] under the policy, a leaf with gradient."""
    entropies: torch.Tensor
    """[T] of the policy, a leaf with gradient."""
    old_logprobs: torch.Tensor
    """[T] under the old policy."""
    reference_logprobs: torch.Tensor
    """[T] under the reference."""


class BenchPolicy:
    """What the preparation of updates needs of a policy."""

    def __init__(self, batch: BenchBatch) -> None:
        self._batch = batch

    def statistics(self, batches: Sequence[PackedBatch]) -> list[TokenStatistics]:
        """Under the old policy."""
        old = TokenStatistics(logprobs=self._batch.old_logprobs, entropies=self._batch.entropies.detach())
        return [old] * len(batches)

    def reference_logprobs(self, batches: Sequence[PackedBatch]) -> list[torch.Tensor]:
        """Under the reference."""
        return [self._batch.reference_logprobs] * len(batches)

    def sum_over_ranks(self, values: dict[str, float]) -> dict[str, float]:
        """The values: there is one rank."""
        return dict(values)


def random_batch(num_sequences: int, num_columns: int, *, seed: int, device: torch.device) -> BenchBatch:
    """Log-probabilities whose ratios are mostly near 1 and reach every clip; one advantage a sequence."""
    generator = torch.Generator().manual_seed(seed)
    num_tokens = num_sequences * num_columns

    def noise(scale: float) -> torch.Tensor:
        return scale * torch.randn(num_tokens, generator=generator)

    mask = torch.rand(num_tokens, generator=generator) >= _MASKED_SHARE
    old = -torch.rand(num_tokens, generator=generator) - 0.05
    advantages = torch.randn(num_sequences, generator=generator).repeat_interleave(num_columns)
    packed = PackedBatch(
        token_ids=torch.zeros(num_tokens, dtype=torch.int64),
        labels=torch.zeros(num_tokens, dtype=torch.int64),
        position_ids=torch.arange(num_columns).repeat(num_sequences),
        cu_seqlens=torch.arange(0, num_tokens + 1, num_columns, dtype=torch.int32),
        loss_mask=mask,
        advantages=torch.where(mask, advantages, torch.zeros_like(advantages)),
        engine_logprobs=torch.where(mask, old + noise(0.05), torch.zeros_like(old)),
        sample_indices=tuple(range(num_sequences)),
    )
    return BenchBatch(
        num_sequences=num_sequences,
        num_columns=num_columns,
        packed=packed.to(device),
        logprobs=(old + noise(0.1)).to(device).requires_grad_(),
        entropies=torch.rand(num_tokens, generator=generator).to(device).requires_grad_(),
        old_logprobs=old.to(device),
        reference_logprobs=(old + noise(0.1)).to(device),
    )
