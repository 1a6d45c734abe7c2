"""The reference policy of KL terms: a copy of the trunk's weights that takes their place for a forward pass."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch


class ReferenceWeights:
    """Weights as they were when this was made, in host memory: one more model there, none on the device."""

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        """Copies the tensors, a rank's own parameters and buffers."""
        self._tensors = tensors
        self._kept = _host_copies(tensors)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Within the block the tensors hold the reference's values, after it their own again, bit for bit.

        Values are copied and tensors never replaced, because optimizers and gradient buffers hold on to them. For the
        block a second copy is in host memory.
        """
        own = _host_copies(self._tensors)
        _copy(self._kept, self._tensors)
        try:
            yield
        finally:
            _copy(own, self._tensors)


def _host_copies(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    return [tensor.detach().to("cpu", copy=True) for tensor in tensors]


@torch.no_grad()
def _copy(sources: Sequence[torch.Tensor], targets: Sequence[torch.Tensor]) -> None:
    for source, target in zip(sources, targets, strict=True):
        target.copy_(source)
