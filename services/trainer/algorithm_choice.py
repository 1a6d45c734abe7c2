"""Which functions of algorithms/ a recipe's section chooses: the one place that knows both.

A new policy loss gets a case in policy_loss; mypy fails until every type of the section has one.
"""

from collections.abc import Sequence
from functools import partial
from typing import assert_never

import torch

from services.common.config.algorithm import (
    AlgorithmConfig,
    CispoConfig,
    ClippedSection,
    GspoConfig,
    GspoTokenConfig,
    ImportanceConfig,
)
from services.trainer.algorithms import advantages, importance
from services.trainer.algorithms.importance import ImportanceWeights
from services.trainer.algorithms.policy_loss import (
    PolicyLoss,
    clipped_surrogate,
    clipped_weight,
    sequence_surrogate,
    sequence_token_surrogate,
)


def policy_loss(algorithm: AlgorithmConfig) -> PolicyLoss:
    """The loss of the section's type, with its clips."""
    match algorithm:
        case ClippedSection(clip_low=low, clip_high=high, dual_clip=dual):
            return partial(clipped_surrogate, clip_low=low, clip_high=high, dual_clip=dual)
        case GspoConfig(clip_low=low, clip_high=high):
            return partial(sequence_surrogate, clip_low=low, clip_high=high)
        case GspoTokenConfig(clip_low=low, clip_high=high):
            return partial(sequence_token_surrogate, clip_low=low, clip_high=high)
        case CispoConfig(clip_low=low, clip_high=high):
            return partial(clipped_weight, clip_low=low, clip_high=high)
        case _:
            assert_never(algorithm)


def sample_advantages(algorithm: AlgorithmConfig, rewards: torch.Tensor, *, group_sizes: Sequence[int]) -> torch.Tensor:
    """[N] the advantages of a round's samples, group after group, before anything that differs by token."""
    match algorithm.baseline:
        case "group_mean":
            return advantages.group_centred(rewards, group_sizes=group_sizes, normalize_std=algorithm.normalize_std)
        case "leave_one_out":
            return advantages.leave_one_out(rewards, group_sizes=group_sizes)
        case "none":
            return advantages.plain_rewards(rewards)


def importance_weights(config: ImportanceConfig, ratios: torch.Tensor, mask: torch.Tensor) -> ImportanceWeights:
    """The weights of tokens from their [T] ratios at the section's level, not yet normalized."""
    match config.mode:
        case "off":
            return importance.unweighted(mask)
        case "truncate":
            return importance.truncated(ratios, mask, upper=config.upper)
        case "clip":
            return importance.clipped(ratios, mask, lower=config.lower, upper=config.upper)
        case "mask":
            return importance.masked(ratios, mask, lower=config.lower, upper=config.upper)
