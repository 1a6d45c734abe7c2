"""Which tokens of a packed micro-batch belong together, and sums over them.

Legend: T tokens of a micro-batch, N sequences.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch


def _alone(sums: torch.Tensor) -> torch.Tensor:
    return sums


@dataclass(frozen=True, kw_only=True)
class Sequences:
    """The sequences of a micro-batch, whole or the same slice of each (context parallelism)."""

    cu_seqlens: torch.Tensor
    """[N + 1] offsets of the sequences, or of their slices, in the tokens at hand."""
    sum_over_slices: Callable[[torch.Tensor], torch.Tensor] = _alone
    """[N] sums of this slice -> [N] sums of all slices, with gradient; the identity when sequences are whole."""

    def sums(self, values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """[N] the sum of each sequence's unmasked values; 0 in a sequence that is masked throughout or empty.

        Args:
            values: [T].
            mask: [T] bool.
        """
        visible = torch.where(mask, values, torch.zeros_like(values))
        sums: torch.Tensor = _Sums.apply(visible, self._offsets)  # type: ignore[no-untyped-call]
        return self.sum_over_slices(sums)

    def counts(self, mask: torch.Tensor) -> torch.Tensor:
        """[N] float32 unmasked tokens of each sequence."""
        return self.sums(mask.float(), mask)

    def shares(self, mask: torch.Tensor) -> torch.Tensor:
        """[N] float32 share of each sequence's unmasked tokens that is at hand.

        1 for a whole sequence, 0 for one that is masked throughout; over slices it adds up to 1, so that a sum of
        shares counts sequences under any split.
        """
        return _sum(mask.float(), self._offsets) / self.counts(mask).clamp(min=1)

    def means(self, values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """[N] the mean of each sequence's unmasked values; 0 in a sequence that is masked throughout or empty."""
        return self.sums(values, mask) / self.counts(mask).clamp(min=1).to(values.dtype)

    def spread(self, values: torch.Tensor) -> torch.Tensor:
        """[T] at each token the value [N] of its sequence."""
        spread: torch.Tensor = _Spread.apply(values, self._offsets)  # type: ignore[no-untyped-call]
        return spread

    @cached_property
    def _offsets(self) -> torch.Tensor:
        return self.cu_seqlens.long()


# Each is the other's gradient. Written as a pair, because torch's own gradients are several times slower on a GPU, and
# that of repeat_interleave is not deterministic there; so is index_add, which is slower on a CPU, too.
class _Sums(torch.autograd.Function):
    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, values: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(offsets)
        return _sum(values, offsets)

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (offsets,) = ctx.saved_tensors  # type: ignore[attr-defined]
        return torch.repeat_interleave(gradient, offsets.diff()), None


class _Spread(torch.autograd.Function):
    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, values: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(offsets)
        return torch.repeat_interleave(values, offsets.diff())

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (offsets,) = ctx.saved_tensors  # type: ignore[attr-defined]
        return _sum(gradient.contiguous(), offsets), None


def _sum(values: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    return torch.segment_reduce(values, "sum", offsets=offsets, initial=0.0)
