"""Builds the loss functions that a policy runs from the recipe's algorithm and the parts in algorithms/.

Legend: T tokens of a micro-batch.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch

from services.common.config.trainer import AlgorithmConfig
from services.trainer.algorithms.aggregation import token_count, token_sum
from services.trainer.algorithms.importance import (
    absolute_mismatch,
    mask_without_rejected,
    truncated_weights,
)
from services.trainer.algorithms.policy_loss import POLICY_LOSSES, PolicyLossInputs
from services.trainer.batch import PackedBatch
from services.trainer.policy import LossFunction, LossSums, TokenStatistics


@dataclass(frozen=True, kw_only=True)
class AcceptedBatches:
    """Micro-batches whose every counted token has usable log-probabilities."""

    batches: list[PackedBatch]
    """As many as came in, in their order; rejected sequences are masked."""
    num_rejected: int
    """Sequences masked."""


def reject_unusable(batches: Sequence[PackedBatch], old_logprobs: Sequence[torch.Tensor]) -> AcceptedBatches:
    """Masks sequences with a NaN or infinite log-probability of the engine or the trainer.

    To be called before the loss tokens are counted: rejected tokens belong to no denominator.

    Args:
        old_logprobs: [T] of each micro-batch, under the trainer.
    """
    accepted, num_rejected = [], 0
    for batch, old in zip(batches, old_logprobs, strict=True):
        mask, num_new = mask_without_rejected(batch.engine_logprobs + old, batch.loss_mask, batch.cu_seqlens)
        accepted.append(replace(batch, loss_mask=mask))
        num_rejected += num_new
    return AcceptedBatches(batches=accepted, num_rejected=num_rejected)


def largest_mismatch(batches: Sequence[PackedBatch], old_logprobs: Sequence[torch.Tensor]) -> float:
    """The largest |log p_trainer - log p_engine| of a counted token, in nats; 0 when none counts."""
    return max(
        (
            float(absolute_mismatch(old, batch.engine_logprobs, batch.loss_mask).max())
            for batch, old in zip(batches, old_logprobs, strict=True)
        ),
        default=0.0,
    )


def make_policy_loss(algorithm: AlgorithmConfig, old_logprobs: Sequence[torch.Tensor]) -> LossFunction:
    """The algorithm's loss as a sum over tokens; divide by the step's number of loss tokens.

    Metric sums, each a mean when divided by num_tokens: policy_loss, clip_fraction, entropy, importance_weight,
    logprob_mismatch; and num_tokens itself.

    Args:
        old_logprobs: [T] of each micro-batch of the call, under the trainer before the step's first update.
    """
    return partial(_policy_loss, algorithm, old_logprobs)


def supervised_loss(statistics: TokenStatistics, batch: PackedBatch, index: int) -> LossSums:
    """Cross-entropy of the labels as a sum over tokens, a LossFunction; divide by the step's number of loss tokens.

    Metric sums: cross_entropy and num_tokens.
    """
    loss_sum = -token_sum(statistics.logprobs, batch.loss_mask)
    metric_sums = {"cross_entropy": float(loss_sum.detach()), "num_tokens": float(token_count(batch.loss_mask))}
    return LossSums(loss_sum=loss_sum, metric_sums=metric_sums)


def _policy_loss(
    algorithm: AlgorithmConfig,
    old_logprobs: Sequence[torch.Tensor],
    statistics: TokenStatistics,
    batch: PackedBatch,
    index: int,
) -> LossSums:
    trainer_logprobs, mask = old_logprobs[index], batch.loss_mask
    inputs = PolicyLossInputs(
        logprobs=statistics.logprobs,
        old_logprobs=trainer_logprobs if algorithm.old_logprobs == "trainer" else batch.engine_logprobs,
        advantages=batch.advantages,
        mask=mask,
        cu_seqlens=batch.cu_seqlens,
    )
    losses = POLICY_LOSSES[algorithm.type](inputs, algorithm.clip_low, algorithm.clip_high)
    weights = truncated_weights(trainer_logprobs, batch.engine_logprobs, mask, cap=algorithm.tis_cap)
    loss_sum = token_sum(losses.losses * weights, mask)
    sums = {
        "policy_loss": loss_sum.detach(),
        "clip_fraction": losses.is_clipped,
        "entropy": token_sum(statistics.entropies, mask),
        "importance_weight": weights,
        "logprob_mismatch": absolute_mismatch(trainer_logprobs, batch.engine_logprobs, mask),
    }
    return LossSums(loss_sum=loss_sum, metric_sums=_totals(sums) | {"num_tokens": float(token_count(mask))})


def _totals(tensors: dict[str, torch.Tensor]) -> dict[str, float]:
    """The sum of each tensor as a float, fetched from the device in one copy."""
    totals = torch.stack([tensor.sum(dtype=torch.float64) for tensor in tensors.values()]).tolist()
    return dict(zip(tensors, totals, strict=True))
