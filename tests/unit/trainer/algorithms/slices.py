"""Sequences cut in two, as context parallelism does; sums over a sequence are completed by the other slice.

Both slices live in one autograd graph, so that a sum over slices passes gradients to both, as an all-reduce does.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

import torch

from services.trainer.algorithms.policy_loss import PolicyLossInputs
from services.trainer.algorithms.sequences import Sequences
from tests.unit.trainer.algorithms.packed import sequences

T = TypeVar("T")


def take(inputs: PolicyLossInputs, places: torch.Tensor, layout: Sequences) -> PolicyLossInputs:
    """Some tokens of the inputs, with gradient to the whole."""
    return replace(
        inputs,
        logprobs=inputs.logprobs[places],
        old_logprobs=inputs.old_logprobs[places],
        advantages=inputs.advantages[places],
        mask=inputs.mask[places],
        sequences=layout,
    )


class TwoSlices:
    """Each sequence cut behind its first tokens, as many as `heads` says."""

    def __init__(self, inputs: PolicyLossInputs, lengths: Sequence[int], heads: Sequence[int]) -> None:
        starts = torch.tensor([0, *lengths]).cumsum(0).tolist()
        numbers = range(len(lengths))
        nothing = [torch.arange(0)]
        self.places = [
            torch.cat(nothing + [torch.arange(starts[i], starts[i] + heads[i]) for i in numbers]),
            torch.cat(nothing + [torch.arange(starts[i] + heads[i], starts[i + 1]) for i in numbers]),
        ]
        self._layouts = [sequences(*heads), sequences(*(a - b for a, b in zip(lengths, heads, strict=True)))]
        self._inputs = inputs

    def run(self, function: Callable[[PolicyLossInputs], T]) -> list[T]:
        """The function's results on each slice; it asks for the same sums in the same order on both."""
        return [function(self._completed(index, self._local_sums(1 - index, function))) for index in range(2)]

    def joined(self, parts: Sequence[torch.Tensor]) -> torch.Tensor:
        """[T] what the slices have for each token, in the order of the whole."""
        together = torch.cat(list(parts))
        return together[torch.cat(self.places).argsort()]

    def _completed(self, index: int, elsewhere: list[torch.Tensor]) -> PolicyLossInputs:
        asked = iter(elsewhere)
        layout = replace(self._layouts[index], sum_over_slices=lambda sums: sums + next(asked))
        return take(self._inputs, self.places[index], layout)

    def _local_sums(self, index: int, function: Callable[[PolicyLossInputs], T]) -> list[torch.Tensor]:
        seen: list[torch.Tensor] = []

        def record(sums: torch.Tensor) -> torch.Tensor:
            seen.append(sums)
            return sums

        function(take(self._inputs, self.places[index], replace(self._layouts[index], sum_over_slices=record)))
        return seen
