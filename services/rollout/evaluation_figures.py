"""Figures over rewards and lengths of evaluated responses. Pure.

Legend: n responses to one prompt, c of them pass, k is the number of tries.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median

from services.common.errors import InvalidInputError


def pass_at_k(*, num_samples: int, num_passed: int, k: int) -> float:
    """The chance that one of k responses passes, estimated without bias from n: 1 - C(n-c, k) / C(n, k).

    It is the share of the k-subsets of the n responses that hold one that passes (arXiv 2107.03374, section 2.1).
    Computed in whole numbers, so no n is too large.

    Raises:
        InvalidInputError: k is not within 1 and n, or c is not within 0 and n.
    """
    if not 1 <= k <= num_samples or not 0 <= num_passed <= num_samples:
        raise InvalidInputError(
            f"pass@{k} of {num_samples} samples with {num_passed} passed; wanted 1 <= k <= samples and "
            "0 <= passed <= samples"
        )
    return 1.0 - math.comb(num_samples - num_passed, k) / math.comb(num_samples, k)


def tries_of(num_samples: int) -> tuple[int, ...]:
    """The values of k that are reported for n samples: 1, 2, 4, … below n, and n."""
    return (*(2**power for power in range((num_samples - 1).bit_length())), num_samples)


def pass_rates(rewards: Sequence[Sequence[float]], *, threshold: float) -> dict[int, float]:
    """pass@k by k in `tries_of`, the mean over prompts; a response passes when its reward is at least threshold.

    Args:
        rewards: one row of n per prompt.

    Raises:
        InvalidInputError: there is no prompt, or rows differ in length.
    """
    sizes = {len(row) for row in rewards}
    if len(sizes) != 1 or 0 in sizes:
        raise InvalidInputError(f"prompts have {sorted(sizes)} responses; wanted one number above 0 for all")
    num_passed = [sum(reward >= threshold for reward in row) for row in rewards]
    (num_samples,) = sizes
    return {
        k: fmean(pass_at_k(num_samples=num_samples, num_passed=passed, k=k) for passed in num_passed)
        for k in tries_of(num_samples)
    }


@dataclass(frozen=True, kw_only=True)
class LengthFigures:
    """How long responses are, in tokens."""

    mean: float
    """Mean."""
    median: float
    """Median; the mean of the two middle ones when the number is even."""
    p90: int
    """The least length that at least nine of ten responses do not exceed; the length of one of them."""
    max: int
    """Longest."""


def length_figures(lengths: Sequence[int]) -> LengthFigures:
    """The figures of at least one length.

    Raises:
        InvalidInputError: there is none.
    """
    if not lengths:
        raise InvalidInputError("there are no responses to measure; evaluate at least one prompt")
    ordered = sorted(lengths)
    rank_of_p90 = -(-9 * len(ordered) // 10)
    return LengthFigures(
        mean=fmean(ordered), median=float(median(ordered)), p90=ordered[rank_of_p90 - 1], max=ordered[-1]
    )
