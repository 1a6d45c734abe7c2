"""The mismatch between the trainer and the engine: its size, and the weights that correct it.

The engine drew the tokens, so an average over them is one under the engine's probabilities; the policy gradient wants
one under the trainer's. The ratio p_trainer / p_engine of a token can be taken at three levels: of the token, of its
sequence (the product of the token ratios), or as the geometric mean over its sequence.

Legend: T tokens of a micro-batch, N sequences.
"""

from dataclasses import dataclass

import torch

from services.trainer.algorithms.log_ratio import MAX_LOG_RATIO, masked_log_ratio
from services.trainer.algorithms.sequences import Sequences

TOKEN, SEQUENCE, GEOMETRIC = "token", "sequence", "geometric"
"""The levels."""


@dataclass(frozen=True, kw_only=True)
class ImportanceWeights:
    """Weights of token losses, without gradient."""

    weights: torch.Tensor
    """[T] at least 0; 0 where masked."""
    is_cut: torch.Tensor
    """[T] bool: the ratio was outside the bounds."""


def level_ratios(
    level: str,
    old_logprobs: torch.Tensor,
    engine_logprobs: torch.Tensor,
    mask: torch.Tensor,
    sequences: Sequences,
) -> torch.Tensor:
    """[T] p_trainer / p_engine at the level, within exp(+-20) and without gradient; at a masked token of no meaning.

    Tokens' log-ratios are clamped to +-20 before they are summed, so one token says no more than that at any level.

    Args:
        level: token, sequence or geometric.
        old_logprobs: [T] under the trainer's policy that the engine is a copy of.
        engine_logprobs: [T] under the engine.
        mask: [T] bool.
    """
    log_ratio = masked_log_ratio(old_logprobs.detach(), engine_logprobs, mask)
    if level == SEQUENCE:
        sums = sequences.sums(log_ratio, mask).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
        return sequences.spread(sums).exp()
    if level == GEOMETRIC:
        return sequences.spread(sequences.means(log_ratio, mask)).exp()
    return log_ratio.exp()


def unweighted(mask: torch.Tensor) -> ImportanceWeights:
    """1 for every token."""
    return ImportanceWeights(weights=mask.float(), is_cut=torch.zeros_like(mask))


def truncated(ratios: torch.Tensor, mask: torch.Tensor, *, upper: float) -> ImportanceWeights:
    """min(ratio, upper): truncated importance sampling (Ionides 2008), biased but of bounded variance."""
    return _weights(ratios.clamp(max=upper), ratios > upper, mask)


def clipped(ratios: torch.Tensor, mask: torch.Tensor, *, lower: float, upper: float) -> ImportanceWeights:
    """The ratio clipped to [lower, upper]."""
    return _weights(ratios.clamp(lower, upper), _is_outside(ratios, lower, upper), mask)


def masked(ratios: torch.Tensor, mask: torch.Tensor, *, lower: float, upper: float) -> ImportanceWeights:
    """The ratio where it is within [lower, upper], 0 elsewhere (IcePop, arXiv 2510.18855).

    A token of weight 0 still counts in every denominator; rejection.py takes tokens out of those, too.
    """
    is_outside = _is_outside(ratios, lower, upper)
    return _weights(torch.where(is_outside, torch.zeros_like(ratios), ratios), is_outside, mask)


def weight_sums(level: str, weights: torch.Tensor, mask: torch.Tensor, sequences: Sequences) -> tuple[float, float]:
    """(sum of the weights, their number): over tokens at token level, else over sequences with a counted token.

    Those of parts add up, a slice of a sequence being its share; over a whole optimizer step the quotient is the mean
    that normalized divides by.
    """
    if level == TOKEN:
        return float(torch.where(mask, weights, torch.zeros_like(weights)).sum(dtype=torch.float64)), float(mask.sum())
    shares = sequences.shares(mask)
    total = (sequences.means(weights, mask) * shares).sum(dtype=torch.float64)
    return float(total), float(shares.sum(dtype=torch.float64))


def normalized(weights: torch.Tensor, *, mean: float) -> torch.Tensor:
    """[T] the weights over their mean over the whole optimizer step; as they are when the mean is 0: all were cut."""
    return weights / mean if mean > 0 else weights


def absolute_mismatch(old_logprobs: torch.Tensor, engine_logprobs: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """[T] |log p_trainer - log p_engine| in nats, without gradient, at most 20; 0 where masked."""
    return masked_log_ratio(old_logprobs.detach(), engine_logprobs, mask).abs()


def _is_outside(ratios: torch.Tensor, lower: float, upper: float) -> torch.Tensor:
    return (ratios < lower) | (ratios > upper)


def _weights(weights: torch.Tensor, is_cut: torch.Tensor, mask: torch.Tensor) -> ImportanceWeights:
    return ImportanceWeights(weights=torch.where(mask, weights, torch.zeros_like(weights)), is_cut=mask & is_cut)
