"""Whether a scored group is worth training on. Pure."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from services.common.records import FinishReason
from services.rollout.scoring import ScoredResponse

NON_FINITE_REWARD = "non_finite_reward"
"""The grader gave NaN or an infinite number: no statistic of the group would mean anything."""
EQUAL_REWARDS = "equal_rewards"
"""All samples have the same reward: every advantage is zero."""
ALL_TRUNCATED = "all_truncated"
"""Every sample was cut at the token limit, and truncated samples are left out of the loss."""


@dataclass(frozen=True, kw_only=True)
class GroupRules:
    """The rules of a recipe; a group that none of them drops is pushed whole."""

    drop_equal_rewards: bool
    """Drop groups without any difference to learn from."""
    filter_truncated: bool
    """The trainer leaves truncated samples out of the loss."""

    def reason_to_drop(self, scored: Sequence[ScoredResponse]) -> str | None:
        """Why the group is dropped, or None to keep it: the first rule that applies, in the order above.

        Args:
            scored: at least one, with the rewards that are trained on, length penalty included.
        """
        rewards = [item.reward for item in scored]
        if not all(math.isfinite(reward) for reward in rewards):
            return NON_FINITE_REWARD
        if self.drop_equal_rewards and are_equal(rewards):
            return EQUAL_REWARDS
        if self.filter_truncated and all(item.response.finish_reason is FinishReason.LENGTH for item in scored):
            return ALL_TRUNCATED
        return None


def are_equal(rewards: Sequence[float]) -> bool:
    """Whether at least one reward, all finite, is equal to all others as a number.

    Without a tolerance: rewards a thousandth apart are a signal that normalised advantages bring to full size. 0.0
    equals -0.0. A group of one is equal: nothing can be learned from it.
    """
    return all(reward == rewards[0] for reward in rewards)
