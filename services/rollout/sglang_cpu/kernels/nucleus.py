"""Restricts distributions to their largest tokens and draws from them.

Legend: R rows, V vocabulary.
"""

import torch
from torch import Tensor


def top_k_renorm_prob(probs: Tensor, top_k: Tensor) -> Tensor:
    """[R, V] each row restricted to its top_k largest tokens (ties included), summing to 1."""
    num_kept = top_k.view(-1, 1).long().clamp(1, probs.shape[-1])
    smallest_kept = probs.sort(dim=-1, descending=True).values.gather(1, num_kept - 1)
    kept = torch.where(probs >= smallest_kept, probs, 0.0)
    return kept / kept.sum(dim=-1, keepdim=True)


def top_p_renorm_prob(probs: Tensor, top_p: Tensor) -> Tensor:
    """[R, V] each row restricted to the fewest largest tokens whose mass reaches top_p, summing to 1."""
    ordered, order = probs.sort(dim=-1, descending=True)
    mass_before = ordered.cumsum(dim=-1) - ordered
    kept = torch.where(mass_before < top_p.view(-1, 1), ordered, 0.0)
    restricted = torch.zeros_like(probs).scatter(1, order, kept)
    return restricted / restricted.sum(dim=-1, keepdim=True)


def sample_rows(weights: Tensor, coins: Tensor) -> Tensor:
    """[R] one index per row of weights [R, V], drawn in proportion to the weights by a coin in [0, 1) per row."""
    # In fp32 the running sum of a large vocabulary can fall short of its total.
    running = weights.double().cumsum(dim=-1)
    thresholds = coins.double()[:, None] * running[:, -1:]
    drawn = torch.searchsorted(running, thresholds, right=True)[:, 0]
    return drawn.clamp_max(weights.shape[-1] - 1)
