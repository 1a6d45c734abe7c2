"""Advantages of a round's samples from their rewards.

A sample whose reward is no number (it failed) has the advantage 0 and is in no statistic of its group. A group whose
other rewards are all equal, and with them a group of one, has exact zeros wherever a baseline is taken off.

Legend: N samples of the round, group after group.
"""

from collections.abc import Callable, Sequence

import torch

# Keeps the quotient finite for rewards that differ by rounding only; small beside any real spread of rewards.
_STD_FLOOR = 1e-6


def group_centred(rewards: torch.Tensor, *, group_sizes: Sequence[int], normalize_std: bool) -> torch.Tensor:
    """[N] each reward minus its group's mean, divided by the group's standard deviation if asked (arXiv 2402.03300).

    The deviation is the unbiased one plus 1e-6. Without the division this is Dr. GRPO's advantage (arXiv 2503.20783),
    which does not favour groups of little spread.

    Args:
        rewards: [N].
        group_sizes: samples of each group in order; they add up to N.
    """
    return _by_group(rewards, group_sizes, _normalized if normalize_std else _centred)


def leave_one_out(rewards: torch.Tensor, *, group_sizes: Sequence[int]) -> torch.Tensor:
    """[N] each reward minus the mean of the other rewards of its group (RLOO, arXiv 2402.14740).

    It is the centred reward times n / (n - 1), so the baseline is independent of the sample and without bias.

    Args:
        rewards: [N].
        group_sizes: samples of each group in order; they add up to N.
    """
    return _by_group(rewards, group_sizes, lambda group: _centred(group) * (len(group) / (len(group) - 1)))


def plain_rewards(rewards: torch.Tensor) -> torch.Tensor:
    """[N] the rewards themselves, for estimators whose only baseline is the mean over the round (REINFORCE++).

    A failed sample counts as one of reward 0 there.
    """
    return torch.where(rewards.isfinite(), rewards, torch.zeros_like(rewards))


def _by_group(
    rewards: torch.Tensor, group_sizes: Sequence[int], estimate: Callable[[torch.Tensor], torch.Tensor]
) -> torch.Tensor:
    advantages = torch.zeros_like(rewards)
    start = 0
    for size in group_sizes:
        group, target = rewards[start : start + size], advantages[start : start + size]
        is_present = group.isfinite()
        present = group[is_present]
        # Asked directly: the mean of equal numbers may differ from them by rounding.
        if bool((present != present[:1]).any()):
            target[is_present] = estimate(present)
        start += size
    return advantages


def _centred(group: torch.Tensor) -> torch.Tensor:
    return group - group.mean()


def _normalized(group: torch.Tensor) -> torch.Tensor:
    return _centred(group) / (group.std(correction=1) + _STD_FLOOR)
