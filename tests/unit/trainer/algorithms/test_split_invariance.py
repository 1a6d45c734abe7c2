"""The loss of the whole is the sum of the losses of its parts: micro-batches, ranks, slices of sequences."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from services.trainer.algorithms.aggregation import (
    SEQUENCE_MEAN,
    SEQUENCE_SUM,
    TOKEN_MEAN,
    aggregation_count,
    aggregation_weights,
)
from services.trainer.algorithms.policy_loss import (
    PolicyLossInputs,
    clipped_surrogate,
    clipped_weight,
    sequence_surrogate,
    sequence_token_surrogate,
)
from services.trainer.algorithms.sequences import Sequences
from tests.unit.trainer.algorithms.packed import random_inputs, sequences

LOSSES = {
    "clipped_surrogate": lambda inputs: clipped_surrogate(inputs, clip_low=0.2, clip_high=0.28, dual_clip=1.5),
    "sequence_surrogate": lambda inputs: sequence_surrogate(inputs, clip_low=0.2, clip_high=0.28),
    "sequence_token_surrogate": lambda inputs: sequence_token_surrogate(inputs, clip_low=0.2, clip_high=0.28),
    "clipped_weight": lambda inputs: clipped_weight(inputs, clip_low=1.0, clip_high=0.28),
}
AGGREGATIONS = (TOKEN_MEAN, SEQUENCE_MEAN, SEQUENCE_SUM)


def weighted_sum(name: str, aggregation: str, inputs: PolicyLossInputs) -> torch.Tensor:
    weights = aggregation_weights(aggregation, inputs.mask, inputs.sequences, divisor_tokens=8.0)
    return (LOSSES[name](inputs).losses * weights).sum()


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


def value_and_gradient(loss: torch.Tensor, inputs: PolicyLossInputs) -> tuple[float, list[float]]:
    (gradient,) = torch.autograd.grad(loss, inputs.logprobs)
    return loss.item(), gradient.tolist()


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@pytest.mark.parametrize("name", LOSSES)
@given(
    lengths=st.lists(st.integers(0, 6), min_size=1, max_size=6),
    parts=st.lists(st.integers(0, 3), min_size=6, max_size=6),
    seed=st.integers(0, 1000),
)
@settings(max_examples=20, deadline=None)
def test_any_split_into_micro_batches_adds_up(
    name: str, aggregation: str, lengths: list[int], parts: list[int], seed: int
) -> None:
    inputs = random_inputs(tuple(lengths), seed=seed)
    starts = torch.tensor([0, *lengths]).cumsum(0).tolist()
    total, count = torch.zeros((), dtype=torch.float64), 0
    for part in range(4):
        members = [index for index in range(len(lengths)) if parts[index] == part]
        places = torch.cat([torch.arange(starts[i], starts[i + 1]) for i in members] or [torch.arange(0)])
        piece = take(inputs, places, sequences(*(lengths[i] for i in members)))
        total = total + weighted_sum(name, aggregation, piece)
        count += aggregation_count(aggregation, piece.mask, piece.sequences)
    whole = value_and_gradient(weighted_sum(name, aggregation, inputs), inputs)
    found = value_and_gradient(total, inputs)
    assert found[0] == pytest.approx(whole[0], rel=1e-6, abs=1e-9)
    assert found[1] == pytest.approx(whole[1], rel=1e-6, abs=1e-9)
    assert count == aggregation_count(aggregation, inputs.mask, inputs.sequences)


class TwoSlices:
    """Each sequence cut in two, as context parallelism does; sums over sequences are completed by the other slice.

    Both slices live in one autograd graph, so that a sum over slices passes gradients to both, as an all-reduce does.
    """

    def __init__(self, inputs: PolicyLossInputs, lengths: tuple[int, ...]) -> None:
        starts = torch.tensor([0, *lengths]).cumsum(0).tolist()
        heads = [length // 2 for length in lengths]
        self.places = [
            torch.cat([torch.arange(starts[i], starts[i] + heads[i]) for i in range(len(lengths))]),
            torch.cat([torch.arange(starts[i] + heads[i], starts[i + 1]) for i in range(len(lengths))]),
        ]
        self.layouts = [sequences(*heads), sequences(*(a - b for a, b in zip(lengths, heads, strict=True)))]
        self.inputs = inputs

    def slice(self, index: int, sums_elsewhere: list[torch.Tensor]) -> PolicyLossInputs:
        """One slice; its sums are completed by those of the other, in the order in which they are asked for."""
        asked = iter(sums_elsewhere)
        layout = replace(self.layouts[index], sum_over_slices=lambda sums: sums + next(asked))
        return take(self.inputs, self.places[index], layout)

    def local_sums(self, index: int, run: Callable[[PolicyLossInputs], torch.Tensor]) -> list[torch.Tensor]:
        """The sums of one slice alone, in the order in which the computation asks for them."""
        seen: list[torch.Tensor] = []

        def record(sums: torch.Tensor) -> torch.Tensor:
            seen.append(sums)
            return sums

        layout = replace(self.layouts[index], sum_over_slices=record)
        run(take(self.inputs, self.places[index], layout))
        return seen


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@pytest.mark.parametrize("name", LOSSES)
def test_slices_of_sequences_add_up(name: str, aggregation: str) -> None:
    lengths = (6, 1, 4, 0, 9)
    inputs = random_inputs(lengths, seed=7)
    slices = TwoSlices(inputs, lengths)

    def run(piece: PolicyLossInputs) -> torch.Tensor:
        return weighted_sum(name, aggregation, piece)

    total = sum(run(slices.slice(index, slices.local_sums(1 - index, run))) for index in range(2))
    assert isinstance(total, torch.Tensor)
    found = value_and_gradient(total, inputs)
    whole = value_and_gradient(run(inputs), inputs)
    assert found[0] == pytest.approx(whole[0], rel=1e-6)
    assert found[1] == pytest.approx(whole[1], rel=1e-6, abs=1e-9)
