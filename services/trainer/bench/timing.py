"""Medians of a case by turns: limit, masked mean, peer and ours see the same state of the machine in every round."""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from services.trainer.bench.cases import BenchCase


@dataclass(frozen=True, kw_only=True)
class CaseFigures:
    """Medians over the rounds, in milliseconds; "full" is forward and backward."""

    name: str
    """The case."""
    num_bytes: int
    """Bytes that the loss reads at least once."""
    read_ms: float
    """The limit: reading those bytes once."""
    mean_ms: float
    """One plain masked mean over the same tensors."""
    mean_full_ms: float
    """The same with its gradient."""
    ours_ms: float
    """Our loss."""
    ours_full_ms: float
    """The same with its gradient."""
    peer_full_ms: float | None
    """The peer's loss with its gradient; None without a peer."""
    largest_difference: float | None
    """Relative difference to the peer, the larger of the value's and the gradient's; None without a peer."""

    @property
    def passes(self) -> float:
        """Our loss in masked means."""
        return self.ours_ms / self.mean_ms

    @property
    def full_passes(self) -> float:
        """Our loss with its gradient in masked means with theirs."""
        return self.ours_full_ms / self.mean_full_ms


def time_case(case: BenchCase, *, num_rounds: int, synchronize: Callable[[], None]) -> CaseFigures:
    """The figures of a case.

    Args:
        synchronize: returns when the device has done all it was given.
    """
    masked_mean = _masked_mean(case)
    parts: dict[str, Callable[[], object]] = {
        "read": lambda: [tensor.detach().sum() for tensor in (*case.reads, case.mask)],
        "mean": masked_mean,
        "mean_full": _with_gradient(masked_mean, case.leaves),
        "ours": case.run,
        "ours_full": _with_gradient(case.run, case.leaves),
    }
    if case.peer is not None:
        parts["peer_full"] = _with_gradient(case.peer, case.leaves)
    medians = _medians(parts, num_rounds, synchronize)
    return CaseFigures(
        name=case.name,
        num_bytes=case.num_bytes,
        read_ms=medians["read"],
        mean_ms=medians["mean"],
        mean_full_ms=medians["mean_full"],
        ours_ms=medians["ours"],
        ours_full_ms=medians["ours_full"],
        peer_full_ms=medians.get("peer_full"),
        largest_difference=None if case.peer is None else _difference(case.run, case.peer, case.leaves),
    )


def _medians(
    parts: dict[str, Callable[[], object]], num_rounds: int, synchronize: Callable[[], None]
) -> dict[str, float]:
    times: dict[str, list[float]] = {name: [] for name in parts}
    # One round more: the first warms caches and allocators and does not count.
    for number in range(num_rounds + 1):
        for name, run in parts.items():
            synchronize()
            started = time.perf_counter()
            run()
            synchronize()
            if number:
                times[name].append((time.perf_counter() - started) * 1e3)
    return {name: statistics.median(values) for name, values in times.items()}


def _masked_mean(case: BenchCase) -> Callable[[], torch.Tensor]:
    def run() -> torch.Tensor:
        sums = [torch.where(case.mask, tensor, torch.zeros_like(tensor)).sum() for tensor in case.reads]
        return torch.stack(sums).sum() / case.mask.sum()

    return run


def _with_gradient(
    loss: Callable[[], torch.Tensor], leaves: Sequence[torch.Tensor]
) -> Callable[[], tuple[torch.Tensor, ...]]:
    return lambda: torch.autograd.grad(loss(), leaves)


def _difference(
    ours: Callable[[], torch.Tensor], peer: Callable[[], torch.Tensor], leaves: Sequence[torch.Tensor]
) -> float:
    found, wanted = ours().detach(), peer().detach()
    pairs = [(found, wanted), *zip(_with_gradient(ours, leaves)(), _with_gradient(peer, leaves)(), strict=True)]
    return max(float((a - b).norm() / b.norm().clamp(min=1e-30)) for a, b in pairs)
