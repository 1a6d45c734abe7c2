"""Off-policy sequence masking: negative samples that the policy has moved away from say nothing any more.

Legend: T tokens of a micro-batch, N sequences.
"""

import torch

from services.trainer.algorithms.log_ratio import masked_log_ratio
from services.trainer.algorithms.sequences import Sequences


def masked_by_divergence(
    logprobs: torch.Tensor,
    old_logprobs: torch.Tensor,
    advantages: torch.Tensor,
    mask: torch.Tensor,
    sequences: Sequences,
    *,
    max_divergence: float,
) -> torch.Tensor:
    """[T] bool, True for tokens with A < 0 in sequences whose mean of log p_old - log p exceeds max_divergence.

    DeepSeek-V3.2, arXiv 2512.02556, section 3.1. The token's loss is to become 0 while it still counts in the
    denominator: the policy changes during the step, the count does not.

    Args:
        logprobs: [T] under the policy.
        old_logprobs: [T] under the policy that drew the tokens.
        advantages: [T].
        mask: [T] bool.
        max_divergence: in nats a token.
    """
    divergence = sequences.means(masked_log_ratio(old_logprobs, logprobs.detach(), mask), mask)
    return mask & (advantages < 0) & (sequences.spread(divergence) > max_divergence)
