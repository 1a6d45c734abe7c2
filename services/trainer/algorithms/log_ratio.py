"""Log-ratios that stay finite.

Legend: T tokens of a micro-batch.
"""

import torch

# exp(20) is 4.9e8: far beyond any clip, far from the overflow of float32 at exp(88).
MAX_LOG_RATIO = 20.0


def masked_log_ratio(numerator: torch.Tensor, denominator: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """numerator - denominator within +-20; 0 where masked, whatever stands there, also for the gradient.

    Beyond the bounds the gradient is 0: a token that far away is noise.

    Args:
        numerator: [T] log-probabilities.
        denominator: [T] log-probabilities.
        mask: [T] bool.
    """
    difference = torch.where(mask, numerator - denominator, torch.zeros_like(numerator))
    return difference.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
