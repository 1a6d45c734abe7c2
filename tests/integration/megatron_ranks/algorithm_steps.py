"""One optimizer step of each algorithm through Megatron, its micro-batches cut in three ways."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from services.common.config.algorithm import (
    AlgorithmConfig,
    CispoConfig,
    DapoConfig,
    DrGrpoConfig,
    GrpoConfig,
    GspoConfig,
    GspoTokenConfig,
    ImportanceConfig,
    KlConfig,
    ReinforcePlusPlusBaselineConfig,
    ReinforcePlusPlusConfig,
    RejectionConfig,
    RlooConfig,
)
from services.trainer.batch import PackedBatch
from services.trainer.loss_assembly import make_policy_loss
from services.trainer.prepared_update import PreparedUpdate
from services.trainer.update_preparation import UpdatePreparation
from tests.integration.megatron_ranks.batches import make_batch, take_sequences
from tests.integration.megatron_ranks.cases import Rank, Result, error_of, gradients_of, weights_of
from tests.integration.megatron_ranks.reassembly import Shards

if TYPE_CHECKING:
    from services.trainer.megatron.policy import MegatronPolicy

LENGTHS = (14, 16, 12, 18, 15, 9, 17, 16)
MICRO_BATCH_SIZES = (1, 2, 4)
"""Sequences of a micro-batch."""

ALGORITHMS: dict[str, AlgorithmConfig] = {
    "grpo": GrpoConfig(entropy_coefficient=0.05),
    "dapo": DapoConfig(dual_clip=1.1, kl=KlConfig(placement="loss", coefficient=0.5, unbiased=True)),
    "dr_grpo": DrGrpoConfig(importance=ImportanceConfig(mode="mask", lower=0.8, upper=1.25, normalize=True)),
    "rloo": RlooConfig(kl=KlConfig(placement="reward", estimator="k1", coefficient=0.1), discount=0.9),
    "reinforce_plus_plus": ReinforcePlusPlusConfig(
        kl=KlConfig(placement="reward", estimator="k1", coefficient=0.5),
        rejection=RejectionConfig(level="token", lower=0.75, upper=1.5),
    ),
    "reinforce_plus_plus_baseline": ReinforcePlusPlusBaselineConfig(max_divergence=0.001),
    "gspo": GspoConfig(
        clip_low=0.2, clip_high=0.2, importance=ImportanceConfig(level="geometric", upper=1.05, normalize=True)
    ),
    "gspo_token": GspoTokenConfig(clip_low=0.2, clip_high=0.2, discount=0.9),
    "cispo": CispoConfig(clip_high=0.01, importance=ImportanceConfig(level="sequence", upper=1.5)),
}
"""Together they use every part of the section."""


def algorithm_steps(rank: Rank) -> Result:
    """Gradients and figures of each algorithm's first update, by micro-batch size, away from old policy and reference.

    Also the experts' biases before and after a step that changes everything else.
    """
    policy = rank.policy
    biases = _expert_biases(policy)
    policy.keep_reference()
    _move(policy, 1.01)
    preparations = {name: _prepared(policy, algorithm) for name, algorithm in ALGORITHMS.items()}
    _move(policy, 1.02)
    results: Result = {"biases": biases}
    for name, updates in preparations.items():
        for size, update in updates.items():
            figures = _step(policy, ALGORITHMS[name], update, lr=0.0)
            results[f"{name}/{size}"] = (figures, gradients_of(policy))
    _step(policy, ALGORITHMS["dapo"], preparations["dapo"][4], lr=1e-2)
    results["biases_later"] = _expert_biases(policy)
    return results


def reference(rank: Rank) -> Result:
    """What a kept reference says after the policy has moved on, and what asking it leaves behind."""
    policy, batches = rank.policy, _micro_batches(rank.policy, 4)
    error = error_of(lambda: policy.reference_logprobs(batches))
    policy.keep_reference()
    kept = [statistics.logprobs for statistics in policy.statistics(batches)]
    _step(policy, ALGORITHMS["dapo"], _prepared(policy, ALGORITHMS["dapo"])[4], lr=1e-2)
    weights = weights_of(policy)
    moved = [statistics.logprobs for statistics in policy.statistics(batches)]
    asked = policy.reference_logprobs(batches)
    again = [statistics.logprobs for statistics in policy.statistics(batches)]
    return {
        "error": error,
        "kept": kept,
        "asked": asked,
        "moved": moved,
        "again": again,
        "weights": weights,
        "weights_later": weights_of(policy),
    }


ALGORITHM_CASES: dict[str, Callable[[Rank], Result]] = {
    "algorithm_steps": algorithm_steps,
    "reference": reference,
}


def _prepared(policy: MegatronPolicy, algorithm: AlgorithmConfig) -> dict[int, PreparedUpdate]:
    """This rank's update by micro-batch size."""
    preparation = UpdatePreparation(policy, algorithm, max_response_tokens=max(LENGTHS))
    return {size: preparation.prepare([_micro_batches(policy, size)])[0] for size in MICRO_BATCH_SIZES}


def _step(policy: MegatronPolicy, algorithm: AlgorithmConfig, update: PreparedUpdate, *, lr: float) -> dict[str, float]:
    figures = policy.update(
        [item.batch for item in update.batches],
        make_policy_loss(algorithm, update.batches),
        global_count=update.global_count,
        lr=lr,
        mtp_lr=lr,
        weight_decay=0.0,
    )
    return {**figures.metric_sums, **update.figures, "global_count": update.global_count}


@torch.no_grad()
def _move(policy: MegatronPolicy, factor: float) -> None:
    """Scales every weight: the same move in every layout."""
    for shard in policy.owned_shards():
        shard.tensor.mul_(factor)


def _expert_biases(policy: MegatronPolicy) -> Shards:
    return [shard for shard in weights_of(policy) if shard[0].endswith("e_score_correction_bias")]


def _micro_batches(policy: MegatronPolicy, size: int) -> list[PackedBatch]:
    batch = _batch()
    mine: Sequence[int] = range(batch.num_sequences)[policy.data_parallel_rank :: policy.data_parallel_size]
    parts = [take_sequences(batch, mine[start : start + size]) for start in range(0, len(mine), size)]
    return [part.to(policy.device) for part in parts]


def _batch() -> PackedBatch:
    """Engine log-probabilities near those of an untrained model over 64 tokens, one advantage a sequence."""
    batch = make_batch(LENGTHS, seed=11)
    generator = torch.Generator().manual_seed(12)
    engine = -4.16 + 0.2 * torch.randn(batch.num_tokens, generator=generator)
    # Mostly of one sign: where gradients cancel out, what is left is rounding.
    advantages = batch.sequences.spread(0.7 + torch.randn(batch.num_sequences, generator=generator))
    zero = torch.zeros(batch.num_tokens)
    return replace(
        batch,
        engine_logprobs=torch.where(batch.loss_mask, engine, zero),
        advantages=torch.where(batch.loss_mask, advantages, zero),
    )
