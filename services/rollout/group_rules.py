"""Whether a scored group is worth training on. Pure."""

import math
from collections.abc import Sequence

NON_FINITE_REWARD = "non_finite_reward"
"""The grader gave NaN or an infinite number: no statistic of the group would mean anything."""
EQUAL_REWARDS = "equal_rewards"
"""All samples have the same reward: every advantage is zero."""
ALL_TRUNCATED = "all_truncated"
"""Every sample was cut at the token limit, and the recipe leaves such samples out of the loss."""


def reason_to_drop(
    rewards: Sequence[float], is_truncated: Sequence[bool], *, drop_equal_rewards: bool, filter_truncated: bool
) -> str | None:
    """Why the group is dropped, or None to keep it; the first rule that applies, in the order above.

    Equal means equal as numbers, without a tolerance: rewards a thousandth apart are a signal that the advantage
    normalisation brings to full size, and 0.0 equals -0.0.

    Args:
        rewards: one per sample, at least one; what is trained on, length penalty included.
        is_truncated: one per sample.
        filter_truncated: truncated samples are left out of the loss.
    """
    if not all(math.isfinite(reward) for reward in rewards):
        return NON_FINITE_REWARD
    if drop_equal_rewards and all(reward == rewards[0] for reward in rewards):
        return EQUAL_REWARDS
    if filter_truncated and all(is_truncated):
        return ALL_TRUNCATED
    return None
