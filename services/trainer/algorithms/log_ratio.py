"""Log-ratios that stay finite, and their means over sequences.

Legend: T tokens of a micro-batch, N sequences.
"""

import torch

# exp(20) is 4.9e8: far beyond any clip, far from the overflow of float32 at exp(88).
MAX_LOG_RATIO = 20.0


def masked_log_ratio(numerator: torch.Tensor, denominator: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """numerator - denominator within +-20; 0 where masked, whatever stands there, also for the gradient.

    Args:
        numerator: [T] log-probabilities.
        denominator: [T] log-probabilities.
        mask: [T] bool.
    """
    zero = torch.zeros((), dtype=numerator.dtype, device=numerator.device)
    difference = torch.where(mask, numerator, zero) - torch.where(mask, denominator, zero)
    return difference.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)


def sequence_means(values: torch.Tensor, mask: torch.Tensor, cu_seqlens: torch.Tensor) -> torch.Tensor:
    """[T] at each position the mean of its sequence's unmasked values; 0 in a sequence that is masked throughout.

    Args:
        values: [T].
        mask: [T] bool.
        cu_seqlens: [N + 1] offsets of the sequences.
    """
    sequence_of_token = sequence_indices(cu_seqlens)
    sums = _sums_by_sequence(torch.where(mask, values, torch.zeros_like(values)), sequence_of_token, cu_seqlens)
    counts = _sums_by_sequence(mask.to(values.dtype), sequence_of_token, cu_seqlens)
    return (sums / counts.clamp(min=1))[sequence_of_token]


def sequence_indices(cu_seqlens: torch.Tensor) -> torch.Tensor:
    """[T] int64 index of the sequence that each position belongs to."""
    lengths = cu_seqlens.diff().long()
    return torch.repeat_interleave(torch.arange(lengths.numel(), device=lengths.device), lengths)


def _sums_by_sequence(values: torch.Tensor, sequence_of_token: torch.Tensor, cu_seqlens: torch.Tensor) -> torch.Tensor:
    return values.new_zeros(cu_seqlens.numel() - 1).index_add(0, sequence_of_token, values)
