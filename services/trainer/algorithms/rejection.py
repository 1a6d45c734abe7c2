"""Which tokens are not trained on at all: they leave the mask, and with it every weight, mean and denominator.

Each function returns the smaller mask. All look at log-probabilities taken before the step's first update, so the mask
is fixed for the step and its counts are taken after it.

Legend: T tokens of a micro-batch, N sequences.
"""

import torch

from services.trainer.algorithms.log_ratio import masked_log_ratio
from services.trainer.algorithms.sequences import Sequences


def without_undefined(logprobs: torch.Tensor, mask: torch.Tensor, sequences: Sequences) -> torch.Tensor:
    """[T] bool: without sequences that have a log-probability that is no number or infinite.

    Such a sequence can have no ratio, and dropping single tokens would bias its length; so it goes as a whole.

    Args:
        logprobs: [T] or a sum of several; only unmasked positions are looked at.
        mask: [T] bool.
    """
    return _without_sequences(mask & ~logprobs.isfinite(), mask, sequences)


def without_vetoed(
    old_logprobs: torch.Tensor,
    engine_logprobs: torch.Tensor,
    mask: torch.Tensor,
    sequences: Sequences,
    *,
    threshold: float,
) -> torch.Tensor:
    """[T] bool: without sequences in which some p_trainer / p_engine is below the threshold.

    One such token says that the trainer would all but never have gone on as the engine did.

    Args:
        old_logprobs: [T] under the trainer.
        engine_logprobs: [T] under the engine.
        mask: [T] bool.
        threshold: above 0; a ratio below exp(-20) counts as exp(-20).
    """
    ratios = masked_log_ratio(old_logprobs, engine_logprobs, mask).exp()
    return _without_sequences(mask & (ratios < threshold), mask, sequences)


def without_outliers(ratios: torch.Tensor, mask: torch.Tensor, *, lower: float, upper: float) -> torch.Tensor:
    """[T] bool: without tokens whose ratio is outside [lower, upper]; ratios of a sequence reject it as a whole.

    Args:
        ratios: [T] at whatever level, of importance.level_ratios.
        mask: [T] bool.
    """
    return mask & (ratios >= lower) & (ratios <= upper)


def num_sequences_lost(before: torch.Tensor, after: torch.Tensor, sequences: Sequences) -> float:
    """Sequences that have a token in the mask before and none after; a slice of one counts as its share."""
    shares, is_left = sequences.shares(before), sequences.counts(after) > 0
    return float(torch.where(is_left, torch.zeros_like(shares), shares).sum(dtype=torch.float64))


def _without_sequences(is_bad: torch.Tensor, mask: torch.Tensor, sequences: Sequences) -> torch.Tensor:
    num_bad = sequences.counts(is_bad)
    return mask & (sequences.spread(num_bad) == 0)
