"""Advantages of tokens: what a KL penalty in the reward and whitening make of the advantages of samples.

Legend: T tokens of a micro-batch, N sequences.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from services.trainer.algorithms.sequences import Sequences

# Beside the variance of any reward that differs at all it is nothing; it keeps whitened equal values at zero.
_VARIANCE_FLOOR = 1e-8


@dataclass(frozen=True, kw_only=True)
class Moments:
    """Sums over the counted tokens of a round; those of parts add up to those of the whole."""

    count: float
    """Tokens."""
    total: float
    """Sum of the values."""
    squares: float
    """Sum of their squares."""


def rewards_to_go(
    advantages: torch.Tensor,
    penalties: torch.Tensor,
    mask: torch.Tensor,
    sequences: Sequences,
    *,
    discount: float,
) -> torch.Tensor:
    """[T] discount^(tokens to the end) * advantage - sum over this and later tokens k of discount^(k - t) penalty_k.

    The sample's advantage is a reward at its last token and each token pays its own penalty, so a token answers for
    its own divergence and what follows it, not for what came before (REINFORCE++, arXiv 2501.03262). Distances
    are in tokens, masked ones included; masked tokens have no reward, penalty or advantage. Needs whole sequences.

    Args:
        advantages: [T] of the token's sample.
        penalties: [T] of the token.
        mask: [T] bool: the token counts.
        discount: 0 < discount <= 1.
    """
    zero = torch.zeros_like(advantages)
    rewards = torch.where(_is_last(mask, sequences), advantages, zero) - torch.where(mask, penalties, zero)
    return torch.where(mask, _discounted_suffix_sums(rewards, sequences, discount), zero)


def moments(values: Sequence[torch.Tensor], masks: Sequence[torch.Tensor]) -> Moments:
    """The moments of the unmasked values, taken in float64.

    Args:
        values: [T] of each micro-batch.
        masks: [T] bool of each micro-batch.
    """
    visible = [value[mask].double() for value, mask in zip(values, masks, strict=True)]
    return Moments(
        count=float(sum(value.numel() for value in visible)),
        total=sum(float(value.sum()) for value in visible),
        squares=sum(float(value.square().sum()) for value in visible),
    )


def whitened(values: torch.Tensor, mask: torch.Tensor, whole: Moments) -> torch.Tensor:
    """[T] (value - mean) / sqrt(variance + 1e-8) with the moments of the whole round; 0 where masked.

    The variance is the unbiased one. Equal values give zeros up to rounding, and a single token gives 0.

    Args:
        values: [T].
        mask: [T] bool.
        whole: over all micro-batches of all ranks.
    """
    if whole.count < 2:
        return torch.zeros_like(values)
    mean = whole.total / whole.count
    variance = max(whole.squares - whole.count * mean**2, 0.0) / (whole.count - 1)
    scaled = (values.double() - mean) / (variance + _VARIANCE_FLOOR) ** 0.5
    return torch.where(mask, scaled.to(values.dtype), torch.zeros_like(values))


def _is_last(mask: torch.Tensor, sequences: Sequences) -> torch.Tensor:
    """[T] the token is the last unmasked one of its sequence."""
    seen = mask.cumsum(0)
    ends = sequences.cu_seqlens.long()
    padded = torch.cat([seen.new_zeros(1), seen])
    return mask & (seen == sequences.spread(padded[ends[1:]]))


def _discounted_suffix_sums(values: torch.Tensor, sequences: Sequences, discount: float) -> torch.Tensor:
    """[T] each value plus discount times the result at the next token of its sequence.

    By doubling: after r rounds each position holds the sum over itself and the next 2^r - 1 positions.
    """
    ends = sequences.spread(sequences.cu_seqlens.long()[1:])
    num_left = ends - torch.arange(values.numel(), device=values.device)
    longest = int(num_left.max()) if num_left.numel() else 0
    sums, distance = values, 1
    while distance < longest:
        shifted = torch.cat([sums[distance:], sums.new_zeros(distance)])
        sums = sums + discount**distance * torch.where(num_left > distance, shifted, torch.zeros_like(sums))
        distance *= 2
    return sums
