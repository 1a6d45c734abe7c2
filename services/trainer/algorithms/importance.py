"""The mismatch between the trainer and the engine: its size, the weights that correct it, and what is beyond repair.

The engine drew the tokens, so an average over them is one under the engine's probabilities; the policy gradient wants
one under the trainer's. Legend: T tokens of a micro-batch, N sequences.
"""

import torch

from services.trainer.algorithms.log_ratio import masked_log_ratio, sequence_indices


def truncated_weights(
    old_logprobs: torch.Tensor, engine_logprobs: torch.Tensor, mask: torch.Tensor, *, cap: float
) -> torch.Tensor:
    """[T] min(p_trainer / p_engine, cap) without gradient; 0 where masked.

    Truncated importance sampling (Ionides 2008) token by token. A cap of 0 switches it off: 1 where not masked.

    Args:
        old_logprobs: [T] under the trainer's policy that the engine is a copy of.
        engine_logprobs: [T] under the engine.
        mask: [T] bool.
    """
    if cap == 0:
        return mask.to(old_logprobs.dtype)
    weights = masked_log_ratio(old_logprobs, engine_logprobs, mask).detach().exp().clamp(max=cap)
    return torch.where(mask, weights, torch.zeros_like(weights))


def absolute_mismatch(old_logprobs: torch.Tensor, engine_logprobs: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """[T] |log p_trainer - log p_engine| in nats, without gradient, at most 20; 0 where masked."""
    return masked_log_ratio(old_logprobs, engine_logprobs, mask).detach().abs()


def mask_without_rejected(
    logprobs: torch.Tensor, mask: torch.Tensor, cu_seqlens: torch.Tensor
) -> tuple[torch.Tensor, int]:
    """The mask without the sequences that have a log-probability that is no number, and how many those are.

    Such a sequence can have no ratio, and dropping single tokens would bias its length; so it goes as a whole, before
    anything is counted, and its tokens enter no denominator. Infinite values are rejected too.

    Args:
        logprobs: [T]; only unmasked positions are looked at.
        mask: [T] bool.
        cu_seqlens: [N + 1] offsets of the sequences.
    """
    sequence_of_token = sequence_indices(cu_seqlens)
    is_rejected = torch.zeros(cu_seqlens.numel() - 1, dtype=torch.bool, device=mask.device)
    is_rejected[sequence_of_token[mask & ~logprobs.isfinite()]] = True
    return mask & ~is_rejected[sequence_of_token], int(is_rejected.sum())
