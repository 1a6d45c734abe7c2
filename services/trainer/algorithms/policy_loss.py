"""The policy losses, token by token; adding one means one function and its entry in POLICY_LOSSES.

Legend: T tokens of a micro-batch, N sequences.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from services.trainer.algorithms.log_ratio import masked_log_ratio, sequence_means


@dataclass(frozen=True, kw_only=True)
class PolicyLossInputs:
    """What every policy loss reads."""

    logprobs: torch.Tensor
    """[T] of the labels under the policy, with gradient."""
    old_logprobs: torch.Tensor
    """[T] under the policy before the step's first update."""
    advantages: torch.Tensor
    """[T]."""
    mask: torch.Tensor
    """[T] bool: the token counts."""
    cu_seqlens: torch.Tensor
    """[N + 1] offsets of the sequences."""


@dataclass(frozen=True, kw_only=True)
class TokenLosses:
    """The loss of each token before any weighting or aggregation; 0 and False where masked."""

    losses: torch.Tensor
    """[T] to minimise, with gradient."""
    is_clipped: torch.Tensor
    """[T] bool: the clipped surrogate was the smaller one, so the token has no gradient."""


PolicyLoss = Callable[[PolicyLossInputs, float, float], TokenLosses]
"""(inputs, clip_low, clip_high) -> losses. Pure."""


def grpo_loss(inputs: PolicyLossInputs, clip_low: float, clip_high: float) -> TokenLosses:
    """Clipped surrogate with the ratio of each token (arXiv 2402.03300, eq. 3), clipped to [1 - low, 1 + high]."""
    log_ratio = masked_log_ratio(inputs.logprobs, inputs.old_logprobs, inputs.mask)
    return _clipped_surrogate(log_ratio, inputs, clip_low=clip_low, clip_high=clip_high)


def gspo_loss(inputs: PolicyLossInputs, clip_low: float, clip_high: float) -> TokenLosses:
    """Clipped surrogate with one ratio a sequence: the geometric mean of its token ratios (arXiv 2507.18071, eq. 5-7).

    The gradient goes through the sequence ratio. Every token of a sequence carries the sequence's loss, so a mean over
    tokens weighs long sequences more than the paper's mean over sequences.
    """
    log_ratio = masked_log_ratio(inputs.logprobs, inputs.old_logprobs, inputs.mask)
    log_ratio = sequence_means(log_ratio, inputs.mask, inputs.cu_seqlens)
    return _clipped_surrogate(log_ratio, inputs, clip_low=clip_low, clip_high=clip_high)


POLICY_LOSSES: Mapping[str, PolicyLoss] = {"grpo": grpo_loss, "gspo": gspo_loss}
"""By the names of trainer.algorithm.type."""


def _clipped_surrogate(
    log_ratio: torch.Tensor, inputs: PolicyLossInputs, *, clip_low: float, clip_high: float
) -> TokenLosses:
    """-min(ratio A, clip(ratio) A); the two clips are separate as in DAPO (arXiv 2503.14476, eq. 8)."""
    advantages = torch.where(inputs.mask, inputs.advantages, torch.zeros_like(inputs.advantages))
    ratio = log_ratio.exp()
    unclipped = ratio * advantages
    clipped = ratio.clamp(1 - clip_low, 1 + clip_high) * advantages
    losses = -torch.minimum(unclipped, clipped)
    return TokenLosses(
        losses=torch.where(inputs.mask, losses, torch.zeros_like(losses)),
        is_clipped=inputs.mask & (clipped < unclipped),
    )
