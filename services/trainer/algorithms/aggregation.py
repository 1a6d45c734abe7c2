"""Aggregation of token losses: sums to be divided once, by a count over the whole optimizer step.

A mean over a micro-batch would weigh tokens by the company they are packed with. Legend: T tokens of a micro-batch.
"""

import torch


def token_sum(values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """[] the sum of the unmasked values; 0, with a gradient of zeros, when all are masked.

    Divided by the step's global token_count it is the mean over tokens (DAPO, arXiv 2503.14476, eq. 8).
    """
    return torch.where(mask, values, torch.zeros_like(values)).sum()


def token_count(mask: torch.Tensor) -> int:
    """The number of unmasked tokens."""
    return int(mask.sum())
