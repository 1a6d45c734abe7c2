"""Aggregation of token losses: sums to be divided once, by a count over the whole optimizer step.

A mean over a micro-batch would weigh tokens by the company they are packed with. So each way to aggregate is a weight
for every token and a count for the step; sum(weight * loss) / count is the aggregate under any split.

Legend: T tokens of a micro-batch, N sequences.
"""

import torch

from services.trainer.algorithms.sequences import Sequences

TOKEN_MEAN = "token_mean"
"""Mean over all tokens (DAPO, arXiv 2503.14476, eq. 8)."""
SEQUENCE_MEAN = "sequence_mean"
"""Mean over sequences of the mean over their tokens (GRPO, arXiv 2402.03300, eq. 3)."""
SEQUENCE_SUM = "sequence_sum"
"""Mean over sequences of the sum over their tokens, over a constant (Dr. GRPO, arXiv 2503.20783, section 3.2)."""


def aggregation_weights(
    aggregation: str, mask: torch.Tensor, sequences: Sequences, *, divisor_tokens: float
) -> torch.Tensor:
    """[T] float32 weight of each token's loss; 0 where masked.

    Args:
        aggregation: one of the names above.
        mask: [T] bool.
        divisor_tokens: the constant of sequence_sum.
    """
    weights = mask.float()
    if aggregation == SEQUENCE_MEAN:
        return weights / sequences.spread(sequences.counts(mask).clamp(min=1))
    return weights / divisor_tokens if aggregation == SEQUENCE_SUM else weights


def aggregation_count(aggregation: str, mask: torch.Tensor, sequences: Sequences) -> float:
    """What the sum over the step is divided by, this part's contribution: tokens, or sequences with a token.

    Masked tokens and sequences that are masked throughout are in no count. A slice of a sequence counts as its share.
    """
    if aggregation == TOKEN_MEAN:
        return float(token_count(mask))
    return float(sequences.shares(mask).sum(dtype=torch.float64))


def token_sum(values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """[] the sum of the unmasked values; 0, with a gradient of zeros, when all are masked."""
    return torch.where(mask, values, torch.zeros_like(values)).sum()


def token_count(mask: torch.Tensor) -> int:
    """The number of unmasked tokens."""
    return int(mask.sum())
