"""Advantages of a round's samples from their rewards.

Legend: N samples of the round, group after group.
"""

from collections.abc import Sequence

import torch

# Keeps the quotient finite for rewards that differ by rounding only; small beside any real spread of rewards.
_STD_FLOOR = 1e-6


def group_normalized(rewards: torch.Tensor, *, group_sizes: Sequence[int], normalize_std: bool) -> torch.Tensor:
    """Each reward minus its group's mean, divided by the group's standard deviation if asked (GRPO, arXiv 2402.03300).

    The deviation is the unbiased one plus 1e-6. Equal rewards, and with them a group of one, give exact zeros. Without
    the division this is Dr. GRPO's advantage (arXiv 2503.20783), which does not favour groups of little spread.

    Args:
        rewards: [N].
        group_sizes: samples of each group in order; they add up to N.

    Returns:
        [N] of the dtype of rewards.
    """
    parts = [_normalized(group, normalize_std) for group in torch.split(rewards, list(group_sizes))]
    return torch.cat(parts) if parts else torch.zeros_like(rewards)


def _normalized(group: torch.Tensor, normalize_std: bool) -> torch.Tensor:
    # Asked directly: the mean of equal numbers may differ from them by rounding, and a group of one has no deviation.
    if bool((group == group[:1]).all()):
        return torch.zeros_like(group)
    centred = group - group.mean()
    return centred / (group.std(correction=1) + _STD_FLOOR) if normalize_std else centred
