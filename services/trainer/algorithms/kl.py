"""Estimates of the divergence between the policy and a reference, token by token.

With d = log p_policy - log p_reference of a token drawn from the policy, the mean of k1 and of k3 is
KL(policy | reference); k2's is not, but its gradient is that of the KL (Schulman, "Approximating KL divergence", 2020).

Legend: T tokens of a micro-batch.
"""

from collections.abc import Callable, Mapping

import torch

from services.trainer.algorithms.log_ratio import masked_log_ratio

# Bounds one token's say when the policy has all but ruled out what the reference likes.
_MAX_LOW_VARIANCE = 10.0


def k1(difference: torch.Tensor) -> torch.Tensor:
    """d. Without bias; its gradient as a loss has a mean of zero unless it is weighted (weighted_estimate)."""
    return difference


def k2(difference: torch.Tensor) -> torch.Tensor:
    """d^2 / 2."""
    return difference.square() / 2


def k3(difference: torch.Tensor) -> torch.Tensor:
    """exp(-d) - 1 + d, never negative (arXiv 2402.03300, eq. 4)."""
    # expm1 keeps the digits that exp(-d) - 1 loses near d = 0, where the policy usually is.
    return torch.expm1(-difference) + difference


def low_variance(difference: torch.Tensor) -> torch.Tensor:
    """k3, at most 10."""
    return k3(difference).clamp(max=_MAX_LOW_VARIANCE)


KL_ESTIMATORS: Mapping[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "k1": k1,
    "k2": k2,
    "k3": k3,
    "low_variance": low_variance,
}
"""By the names of trainer.algorithm.kl.estimator."""


def kl_estimate(
    estimator: str, logprobs: torch.Tensor, reference_logprobs: torch.Tensor, mask: torch.Tensor
) -> torch.Tensor:
    """[T] the estimate of each token with its gradient; 0 where masked. Differences are clamped to +-20.

    Args:
        logprobs: [T] under the policy.
        reference_logprobs: [T] under the reference.
        mask: [T] bool.
    """
    # Every estimator is 0 at a difference of 0.
    return KL_ESTIMATORS[estimator](masked_log_ratio(logprobs, reference_logprobs, mask))


def weighted_estimate(
    estimate: torch.Tensor, logprobs: torch.Tensor, old_logprobs: torch.Tensor, mask: torch.Tensor
) -> torch.Tensor:
    """[T] the estimate times p_policy / p_old, gradient through both: unbiased for tokens that p_old drew.

    The gradient of the mean of weighted k1 or k3 is that of the KL (DeepSeek-V3.2, arXiv 2512.02556, section 3.1).

    Args:
        estimate: [T] of kl_estimate.
        logprobs: [T] under the policy.
        old_logprobs: [T] under the policy that drew the tokens.
        mask: [T] bool.
    """
    return masked_log_ratio(logprobs, old_logprobs, mask).exp() * estimate
