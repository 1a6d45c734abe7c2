"""Puts the ranks' blocks of hub tensors together again."""

from collections.abc import Iterable

import torch

Shards = list[tuple[str, tuple[int, ...], tuple[int, ...], torch.Tensor]]
"""(hub name, whole shape, first indices of the block, block) of each block of a rank."""


def reassemble(ranks: Iterable[Shards]) -> dict[str, torch.Tensor]:
    """The whole tensors; replicated blocks must agree and no element may be missing."""
    wholes: dict[str, torch.Tensor] = {}
    for name, shape, starts, block in (shard for shards in ranks for shard in shards):
        whole = wholes.setdefault(name, torch.full(shape, float("nan"), dtype=block.dtype))
        part = whole[tuple(slice(start, start + size) for start, size in zip(starts, block.shape, strict=True))]
        assert part.isnan().all() or torch.equal(part, block), f"two ranks disagree on {name} at {starts}"
        part.copy_(block)
    missing = [name for name, whole in wholes.items() if whole.isnan().any()]
    assert not missing, f"no rank holds all of {missing}"
    return wholes


def relative_difference(found: torch.Tensor, wanted: torch.Tensor) -> float:
    """Length of the difference as a share of the wanted tensor's length."""
    return float((found - wanted).norm() / wanted.norm().clamp_min(1e-30))
