"""Builds the loss functions that a policy runs from the recipe's algorithm and the parts in algorithms/.

Legend: T tokens of a micro-batch.
"""

from collections.abc import Sequence
from functools import partial

import torch

from services.common.config.algorithm import AlgorithmConfig
from services.trainer.algorithm_choice import policy_loss
from services.trainer.algorithms.aggregation import token_count, token_sum
from services.trainer.algorithms.kl import kl_estimate, weighted_estimate
from services.trainer.algorithms.policy_loss import PolicyLoss, PolicyLossInputs
from services.trainer.algorithms.sequence_masking import masked_by_divergence
from services.trainer.batch import PackedBatch
from services.trainer.policy import LossFunction, LossSums, TokenStatistics
from services.trainer.prepared_update import PreparedBatch


def make_policy_loss(algorithm: AlgorithmConfig, prepared: Sequence[PreparedBatch]) -> LossFunction:
    """The algorithm's loss as a sum; divide by the update's global_count.

    It is the sum over tokens of aggregation weight x (importance weight x policy loss + kl coefficient x divergence -
    entropy coefficient x entropy). Metric sums: policy_loss, which divided by global_count is the first of the three;
    and, each a mean when divided by the update's num_tokens, clip_fraction, entropy, kl and sequence_masked.

    Args:
        prepared: the micro-batches of the call.
    """
    return partial(_policy_loss, algorithm, policy_loss(algorithm), prepared)


def supervised_loss(statistics: TokenStatistics, batch: PackedBatch, index: int) -> LossSums:
    """Cross-entropy of the labels as a sum over tokens, a LossFunction; divide by the step's number of loss tokens.

    Metric sums: cross_entropy and num_tokens.
    """
    loss_sum = -token_sum(statistics.logprobs, batch.loss_mask)
    metric_sums = {"cross_entropy": float(loss_sum.detach()), "num_tokens": float(token_count(batch.loss_mask))}
    return LossSums(loss_sum=loss_sum, metric_sums=metric_sums)


def _policy_loss(
    algorithm: AlgorithmConfig,
    token_loss: PolicyLoss,
    prepared: Sequence[PreparedBatch],
    statistics: TokenStatistics,
    batch: PackedBatch,
    index: int,
) -> LossSums:
    item, mask = prepared[index], batch.loss_mask
    inputs = _inputs(algorithm, item, statistics)
    result = token_loss(inputs)
    weights = item.importance_weights
    is_masked = _masked_sequences(algorithm, inputs)
    if is_masked is not None:
        weights = torch.where(is_masked, torch.zeros_like(weights), weights)
    entropies = torch.where(mask, statistics.entropies, torch.zeros_like(statistics.entropies))
    divergences = _divergences(algorithm, item, inputs)
    losses = policy_losses = result.losses * weights
    if algorithm.kl.placement == "loss" and divergences is not None:
        losses = losses + algorithm.kl.coefficient * divergences
    if algorithm.entropy_coefficient:
        losses = losses - algorithm.entropy_coefficient * entropies
    sums = {
        "policy_loss": policy_losses.detach() * item.aggregation_weights,
        "clip_fraction": result.is_clipped,
        "entropy": entropies.detach(),
    }
    if divergences is not None:
        sums["kl"] = divergences.detach()
    if is_masked is not None:
        sums["sequence_masked"] = is_masked
    return LossSums(
        loss_sum=(losses * item.aggregation_weights).sum(),
        metric_sums=_totals(sums),
    )


def _inputs(algorithm: AlgorithmConfig, item: PreparedBatch, statistics: TokenStatistics) -> PolicyLossInputs:
    batch = item.batch
    return PolicyLossInputs(
        logprobs=statistics.logprobs,
        old_logprobs=item.old_logprobs if algorithm.old_logprobs == "trainer" else batch.engine_logprobs,
        advantages=batch.advantages,
        mask=batch.loss_mask,
        sequences=batch.sequences,
    )


def _masked_sequences(algorithm: AlgorithmConfig, inputs: PolicyLossInputs) -> torch.Tensor | None:
    """[T] bool, None without off-policy sequence masking."""
    if not algorithm.max_divergence:
        return None
    return masked_by_divergence(
        inputs.logprobs,
        inputs.old_logprobs,
        inputs.advantages,
        inputs.mask,
        inputs.sequences,
        max_divergence=algorithm.max_divergence,
    )


def _divergences(algorithm: AlgorithmConfig, item: PreparedBatch, inputs: PolicyLossInputs) -> torch.Tensor | None:
    """[T] estimate of the divergence from the reference; None without a reference."""
    if item.reference_logprobs is None:
        return None
    estimate = kl_estimate(algorithm.kl.estimator, inputs.logprobs, item.reference_logprobs, inputs.mask)
    if not algorithm.kl.unbiased:
        return estimate
    return weighted_estimate(estimate, inputs.logprobs, inputs.old_logprobs, inputs.mask)


def _totals(tensors: dict[str, torch.Tensor]) -> dict[str, float]:
    """The sum of each tensor as a float, fetched from the device in one copy."""
    totals = torch.stack([tensor.sum(dtype=torch.float64) for tensor in tensors.values()]).tolist()
    return dict(zip(tensors, totals, strict=True))
