"""The reference policy of KL terms: a copy of the trunk's weights that takes their place for a forward pass."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch


class ReferenceWeights:
    """Weights as they were when this was made, in host memory: one more model there, none on the device."""

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        """Copies the tensors, a rank's own parameters and buffers."""
        self._tensors = tensors
        self._kept = [_host_copy(tensor) for tensor in tensors]

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Within the block the tensors hold the reference's values, after it their own again, bit for bit.

        Values are exchanged and tensors never replaced, because optimizers and gradient buffers hold on to them. For
        the block the weights' own values are where the reference's were, so it takes no more memory than one tensor.
        """
        num_exchanged = 0
        try:
            for tensor, kept in zip(self._tensors, self._kept, strict=True):
                _exchange(tensor, kept)
                num_exchanged += 1
            yield
        finally:
            for tensor, kept in zip(self._tensors[:num_exchanged], self._kept, strict=False):
                _exchange(tensor, kept)


def _host_copy(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().to("cpu", copy=True)


@torch.no_grad()
def _exchange(tensor: torch.Tensor, kept: torch.Tensor) -> None:
    own = _host_copy(tensor)
    tensor.copy_(kept)
    kept.copy_(own)
