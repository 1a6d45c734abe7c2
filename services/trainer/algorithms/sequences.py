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
        # Unlike index_add it is deterministic on every device, and on a CPU it is five times faster.
        return self.sum_over_slices(torch.segment_reduce(visible, "sum", offsets=self._offsets, initial=0.0))

    def counts(self, mask: torch.Tensor) -> torch.Tensor:
        """[N] float32 unmasked tokens of each sequence."""
        return self.sums(mask.float(), mask)

    def means(self, values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """[N] the mean of each sequence's unmasked values; 0 in a sequence that is masked throughout or empty."""
        return self.sums(values, mask) / self.counts(mask).clamp(min=1).to(values.dtype)

    def spread(self, values: torch.Tensor) -> torch.Tensor:
        """[T] at each token the value [N] of its sequence."""
        return torch.repeat_interleave(values, self._lengths)

    @cached_property
    def _offsets(self) -> torch.Tensor:
        return self.cu_seqlens.long()

    @cached_property
    def _lengths(self) -> torch.Tensor:
        return self._offsets.diff()
