"""The policy losses, token by token. Each is one function of PolicyLossInputs and plain numbers.

Legend: T tokens of a micro-batch. The ratio is that of the policy's probability to the old policy's.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from services.trainer.algorithms.log_ratio import masked_log_ratio
from services.trainer.algorithms.sequences import Sequences


@dataclass(frozen=True, kw_only=True)
class PolicyLossInputs:
    """What every policy loss reads."""

    logprobs: torch.Tensor
    """[T] of the labels under the policy, with gradient."""
    old_logprobs: torch.Tensor
    """[T] under the policy that the ratio compares to, without gradient."""
    advantages: torch.Tensor
    """[T] without gradient."""
    mask: torch.Tensor
    """[T] bool: the token counts."""
    sequences: Sequences
    """Which tokens belong together."""


@dataclass(frozen=True, kw_only=True)
class TokenLosses:
    """The loss of each token before any weighting or aggregation; 0 and False where masked."""

    losses: torch.Tensor
    """[T] to minimise, with gradient."""
    is_clipped: torch.Tensor
    """[T] bool: a bound took effect, so that the token's gradient is cut or gone."""


PolicyLoss = Callable[[PolicyLossInputs], TokenLosses]
"""Pure; equal to the sum over any split of the tokens, given the sums over sequences."""


def clipped_surrogate(
    inputs: PolicyLossInputs, *, clip_low: float, clip_high: float, dual_clip: float = 0.0
) -> TokenLosses:
    """-min(ratio A, clip(ratio) A) with the ratio of each token (PPO, arXiv 1707.06347, eq. 7).

    The ratio is clipped to [1 - clip_low, 1 + clip_high]; the two are separate as in DAPO (arXiv 2503.14476, eq. 8).

    Args:
        dual_clip: above 1, the loss of a token with a negative advantage is at most dual_clip |A| (arXiv 1912.09729),
            which bounds tokens that became far likelier; 0 switches it off.
    """
    log_ratio = masked_log_ratio(inputs.logprobs, inputs.old_logprobs, inputs.mask)
    return _clipped(log_ratio, inputs, clip_low=clip_low, clip_high=clip_high, dual_clip=dual_clip)


def sequence_surrogate(inputs: PolicyLossInputs, *, clip_low: float, clip_high: float) -> TokenLosses:
    """The clipped surrogate with one ratio a sequence: the geometric mean of its token ratios (GSPO, arXiv 2507.18071).

    Equations 5 to 7. The gradient goes through the sequence's ratio. Every token of a sequence carries its loss, so the
    paper's mean over sequences is the aggregation sequence_mean.
    """
    log_ratio = masked_log_ratio(inputs.logprobs, inputs.old_logprobs, inputs.mask)
    means = inputs.sequences.means(log_ratio, inputs.mask)
    return _clipped(inputs.sequences.spread(means), inputs, clip_low=clip_low, clip_high=clip_high)


def sequence_token_surrogate(inputs: PolicyLossInputs, *, clip_low: float, clip_high: float) -> TokenLosses:
    """GSPO-token (arXiv 2507.18071, eq. 13-14): the sequence's ratio as value, the token's own gradient.

    The ratio is sg[sequence ratio] * ratio / sg[ratio]. With one advantage for all tokens of a sequence its mean over
    them has the value and the gradient of sequence_surrogate; it serves advantages that differ by token.
    """
    log_ratio = masked_log_ratio(inputs.logprobs, inputs.old_logprobs, inputs.mask)
    means = inputs.sequences.means(log_ratio.detach(), inputs.mask)
    log_ratio = inputs.sequences.spread(means) + (log_ratio - log_ratio.detach())
    return _clipped(log_ratio, inputs, clip_low=clip_low, clip_high=clip_high)


def clipped_weight(inputs: PolicyLossInputs, *, clip_low: float, clip_high: float) -> TokenLosses:
    """-sg[clip(ratio)] A log p: no token ever loses its gradient (CISPO, arXiv 2506.13585, eq. 4).

    The value is no measure of progress; only the gradient means something.
    """
    zero = torch.zeros_like(inputs.logprobs)
    logprobs = torch.where(inputs.mask, inputs.logprobs, zero)
    ratio = masked_log_ratio(logprobs.detach(), inputs.old_logprobs, inputs.mask).exp()
    weight = ratio.clamp(1 - clip_low, 1 + clip_high)
    losses = -weight * _visible_advantages(inputs) * logprobs
    return TokenLosses(losses=losses, is_clipped=weight != ratio)


def _clipped(
    log_ratio: torch.Tensor,
    inputs: PolicyLossInputs,
    *,
    clip_low: float,
    clip_high: float,
    dual_clip: float = 0.0,
) -> TokenLosses:
    ratio, advantages = log_ratio.exp(), _visible_advantages(inputs)
    unclipped = ratio * advantages
    clipped = ratio.clamp(1 - clip_low, 1 + clip_high) * advantages
    gains, is_clipped = torch.minimum(unclipped, clipped), clipped < unclipped
    if dual_clip:
        # No gain of a positive advantage is negative, so the bound is one of negative advantages alone.
        least = -dual_clip * advantages.abs()
        gains, is_clipped = torch.maximum(gains, least), is_clipped | (gains < least)
    return TokenLosses(losses=-gains, is_clipped=is_clipped)


def _visible_advantages(inputs: PolicyLossInputs) -> torch.Tensor:
    """0 where masked, which makes losses and gradients there exact zeros."""
    return torch.where(inputs.mask, inputs.advantages, torch.zeros_like(inputs.advantages))
