"""Everything about a round's optimizer steps that is fixed before the first of them changes the policy.

Collective: every rank prepares its own micro-batches, and what needs the whole step or round is summed over ranks.

Legend: T tokens of a micro-batch.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch

from services.common.config.algorithm import AlgorithmConfig
from services.trainer.algorithm_choice import importance_weights
from services.trainer.algorithms.aggregation import aggregation_weights
from services.trainer.algorithms.importance import level_ratios, normalized, weight_sums
from services.trainer.algorithms.kl import kl_estimate
from services.trainer.algorithms.returns import Moments, moments, rewards_to_go, whitened
from services.trainer.batch import PackedBatch
from services.trainer.policy import TokenStatistics
from services.trainer.prepared_update import PreparedBatch, PreparedUpdate, largest_mismatch, local_sums
from services.trainer.screening import ScreenedBatch, screen


@dataclass(frozen=True, kw_only=True)
class _Measured:
    batch: PackedBatch
    old_logprobs: torch.Tensor
    reference_logprobs: torch.Tensor | None
    screened: ScreenedBatch


class MeasuredPolicy(Protocol):
    """The part of the policy that the preparation needs."""

    def statistics(self, batches: Sequence[PackedBatch]) -> list[TokenStatistics]:
        """Collective. Statistics of each micro-batch, without gradient."""
        ...

    def reference_logprobs(self, batches: Sequence[PackedBatch]) -> list[torch.Tensor]:
        """Collective. [T] of each micro-batch under the reference."""
        ...

    def sum_over_ranks(self, values: dict[str, float]) -> dict[str, float]:
        """Collective. Sums over the data-parallel replicas, each counted once."""
        ...


class UpdatePreparation:
    """Prepares the updates of rounds. Collective."""

    def __init__(self, policy: MeasuredPolicy, algorithm: AlgorithmConfig, *, max_response_tokens: int) -> None:
        self._policy = policy
        self._algorithm = algorithm
        self._divisor_tokens = algorithm.divisor_tokens or max_response_tokens

    def prepare(self, updates: Sequence[Sequence[PackedBatch]]) -> list[PreparedUpdate]:
        """The updates in their order; every rank passes as many, with as many micro-batches each as every other rank.

        Log-probabilities are taken, tokens screened, then advantages completed over the round and importance weights
        over each update.
        """
        measured = [self._with_advantages(self._measure(batches)) for batches in updates]
        if self._algorithm.whiten:
            measured = self._whitened(measured)
        return [self._finish(items) for items in measured]

    def _measure(self, batches: Sequence[PackedBatch]) -> list[_Measured]:
        old = [statistics.logprobs for statistics in self._policy.statistics(batches)]
        has_reference = self._algorithm.kl.placement != "off"
        reference = self._policy.reference_logprobs(batches) if has_reference else [None] * len(batches)
        items = []
        for batch, old_logprobs, reference_logprobs in zip(batches, old, reference, strict=True):
            screened = screen(batch, old_logprobs, reference_logprobs, self._algorithm.rejection)
            items.append(
                _Measured(
                    batch=replace(batch, loss_mask=screened.mask),
                    old_logprobs=old_logprobs,
                    reference_logprobs=reference_logprobs,
                    screened=screened,
                )
            )
        return items

    def _with_advantages(self, items: Sequence[_Measured]) -> list[_Measured]:
        """The items with what a KL penalty and the discount make of their advantages."""
        kl, discount = self._algorithm.kl, self._algorithm.discount
        if kl.placement != "reward" and discount == 1:
            return list(items)
        return [_with(item, self._returns(item)) for item in items]

    def _returns(self, item: _Measured) -> torch.Tensor:
        batch, kl = item.batch, self._algorithm.kl
        penalties = torch.zeros_like(batch.advantages)
        if kl.placement == "reward" and item.reference_logprobs is not None:
            penalties = kl.coefficient * kl_estimate(
                kl.estimator, item.old_logprobs, item.reference_logprobs, batch.loss_mask
            )
        return rewards_to_go(
            batch.advantages,
            penalties,
            batch.loss_mask,
            batch.sequences,
            discount=self._algorithm.discount,
        )

    def _whitened(self, updates: Sequence[Sequence[_Measured]]) -> list[list[_Measured]]:
        batches = [item.batch for items in updates for item in items]
        local = moments([batch.advantages for batch in batches], [batch.loss_mask for batch in batches])
        sums = self._policy.sum_over_ranks({"count": local.count, "total": local.total, "squares": local.squares})
        whole = Moments(count=sums["count"], total=sums["total"], squares=sums["squares"])
        return [
            [_with(item, whitened(item.batch.advantages, item.batch.loss_mask, whole)) for item in items]
            for items in updates
        ]

    def _finish(self, items: Sequence[_Measured]) -> PreparedUpdate:
        prepared = self._normalized([self._weigh(item) for item in items])
        screened = [item.screened for item in items]
        sums = self._policy.sum_over_ranks(local_sums(prepared, screened, aggregation=self._algorithm.aggregation))
        return PreparedUpdate(
            batches=prepared,
            global_count=sums.pop("global_count"),
            figures=sums,
            max_mismatch=largest_mismatch(prepared, screened),
        )

    def _weigh(self, item: _Measured) -> PreparedBatch:
        batch, algorithm = item.batch, self._algorithm
        mask, sequences = batch.loss_mask, batch.sequences
        ratios = level_ratios(algorithm.importance.level, item.old_logprobs, batch.engine_logprobs, mask, sequences)
        weights = importance_weights(algorithm.importance, ratios, mask)
        return PreparedBatch(
            batch=batch,
            old_logprobs=item.old_logprobs,
            reference_logprobs=item.reference_logprobs,
            importance_weights=weights.weights,
            is_cut=weights.is_cut,
            aggregation_weights=aggregation_weights(
                algorithm.aggregation, mask, sequences, divisor_tokens=self._divisor_tokens
            ),
        )

    def _normalized(self, batches: list[PreparedBatch]) -> list[PreparedBatch]:
        """The weights over their mean over the update, if the recipe says so."""
        config = self._algorithm.importance
        if not config.normalize:
            return batches
        parts = [
            weight_sums(config.level, item.importance_weights, item.batch.loss_mask, item.batch.sequences)
            for item in batches
        ]
        sums = self._policy.sum_over_ranks(
            {"total": sum(total for total, _ in parts), "count": sum(count for _, count in parts)}
        )
        mean = sums["total"] / sums["count"] if sums["count"] else 0.0
        return [replace(item, importance_weights=normalized(item.importance_weights, mean=mean)) for item in batches]


def _with(item: _Measured, advantages: torch.Tensor) -> _Measured:
    return replace(item, batch=replace(item.batch, advantages=advantages))
