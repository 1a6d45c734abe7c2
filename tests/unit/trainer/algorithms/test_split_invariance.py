"""The loss of the whole is the sum of the losses of its parts: micro-batches, ranks, slices of sequences."""

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
from services.trainer.algorithms.importance import GEOMETRIC, SEQUENCE, TOKEN, level_ratios, weight_sums
from services.trainer.algorithms.kl import KL_ESTIMATORS, kl_estimate, weighted_estimate
from services.trainer.algorithms.policy_loss import (
    PolicyLossInputs,
    clipped_surrogate,
    clipped_weight,
    sequence_surrogate,
    sequence_token_surrogate,
)
from services.trainer.algorithms.rejection import (
    num_sequences_lost,
    without_outliers,
    without_undefined,
    without_vetoed,
)
from services.trainer.algorithms.sequence_masking import masked_by_divergence
from tests.unit.trainer.algorithms.packed import random_inputs, sequences
from tests.unit.trainer.algorithms.slices import TwoSlices, take

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
@settings(max_examples=50, deadline=None)
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


@st.composite
def cut_sequences(draw: st.DrawFn) -> tuple[list[int], list[int]]:
    """(lengths, tokens of each in the first slice): slices may hold nothing of a sequence, or all of it."""
    lengths = draw(st.lists(st.integers(0, 7), min_size=1, max_size=5))
    return lengths, [draw(st.integers(0, length)) for length in lengths]


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@pytest.mark.parametrize("name", LOSSES)
@given(cut=cut_sequences(), seed=st.integers(0, 1000))
@settings(max_examples=50, deadline=None)
def test_slices_of_sequences_add_up(name: str, aggregation: str, cut: tuple[list[int], list[int]], seed: int) -> None:
    lengths, heads = cut
    inputs = random_inputs(tuple(lengths), seed=seed)
    parts = TwoSlices(inputs, lengths, heads).run(lambda piece: weighted_sum(name, aggregation, piece))
    found = value_and_gradient(parts[0] + parts[1], inputs)
    whole = value_and_gradient(weighted_sum(name, aggregation, inputs), inputs)
    assert found[0] == pytest.approx(whole[0], rel=1e-6, abs=1e-9)
    assert found[1] == pytest.approx(whole[1], rel=1e-6, abs=1e-9)


@given(cut=cut_sequences(), seed=st.integers(0, 1000))
@settings(max_examples=40, deadline=None)
def test_what_a_slice_decides_is_what_the_whole_decides(cut: tuple[list[int], list[int]], seed: int) -> None:
    """Ratios at every level, rejection and sequence masking look at whole sequences from every slice."""
    lengths, heads = cut
    inputs = random_inputs(tuple(lengths), seed=seed)
    slices = TwoSlices(inputs, lengths, heads)

    def ratios(piece: PolicyLossInputs) -> list[torch.Tensor]:
        return [
            torch.where(piece.mask, level_ratios(level, *_pair(piece), piece.mask, piece.sequences), 0.0)
            for level in (TOKEN, SEQUENCE, GEOMETRIC)
        ]

    def decisions(piece: PolicyLossInputs) -> list[torch.Tensor]:
        new, old = _pair(piece)
        odd = torch.where(new > -0.2, torch.nan, new)
        return [
            without_undefined(odd, piece.mask, piece.sequences),
            without_vetoed(new, old, piece.mask, piece.sequences, threshold=0.8),
            masked_by_divergence(new, old, piece.advantages, piece.mask, piece.sequences, max_divergence=0.05),
        ]

    for parts, whole in zip(zip(*slices.run(ratios), strict=True), ratios(inputs), strict=True):
        assert slices.joined(parts).tolist() == pytest.approx(whole.tolist())
    for parts, whole in zip(zip(*slices.run(decisions), strict=True), decisions(inputs), strict=True):
        assert slices.joined(parts).tolist() == whole.tolist()


def _pair(piece: PolicyLossInputs) -> tuple[torch.Tensor, torch.Tensor]:
    return piece.logprobs.detach(), piece.old_logprobs


@pytest.mark.parametrize("estimator", KL_ESTIMATORS)
@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_the_divergence_adds_up_over_micro_batches_and_slices(estimator: str, aggregation: str) -> None:
    lengths, heads = [6, 1, 4, 0, 9], [2, 1, 0, 0, 5]
    inputs = random_inputs(tuple(lengths), seed=11)

    def divergence(piece: PolicyLossInputs) -> torch.Tensor:
        estimate = kl_estimate(estimator, piece.logprobs, piece.old_logprobs, piece.mask)
        weighted = weighted_estimate(estimate, piece.logprobs, piece.old_logprobs - 0.1, piece.mask)
        weights = aggregation_weights(aggregation, piece.mask, piece.sequences, divisor_tokens=8.0)
        return (weighted * weights).sum()

    whole = value_and_gradient(divergence(inputs), inputs)
    batches = [
        take(inputs, torch.arange(0, 7), sequences(6, 1)),
        take(inputs, torch.arange(7, 20), sequences(4, 0, 9)),
    ]
    for parts in (TwoSlices(inputs, lengths, heads).run(divergence), [divergence(batch) for batch in batches]):
        found = value_and_gradient(parts[0] + parts[1], inputs)
        assert found[0] == pytest.approx(whole[0], rel=1e-6)
        assert found[1] == pytest.approx(whole[1], rel=1e-6, abs=1e-9)


@pytest.mark.parametrize("level", [TOKEN, SEQUENCE, GEOMETRIC])
@given(cut=cut_sequences(), seed=st.integers(0, 1000))
@settings(max_examples=30, deadline=None)
def test_counts_of_slices_add_up_and_so_do_their_importance_weights(
    level: str, cut: tuple[list[int], list[int]], seed: int
) -> None:
    lengths, heads = cut
    inputs = random_inputs(tuple(lengths), seed=seed)
    # The ratios of the whole stand in the place of advantages, so that slices take their part of them.
    whole = level_ratios(level, *_pair(inputs), inputs.mask, inputs.sequences)
    inputs = replace(inputs, advantages=whole)

    def sums(piece: PolicyLossInputs) -> list[float]:
        ratios = piece.advantages
        kept = without_outliers(ratios, piece.mask, lower=0.8, upper=1.2)
        return [
            *weight_sums(level, ratios, piece.mask, piece.sequences),
            num_sequences_lost(piece.mask, kept, piece.sequences),
            *(aggregation_count(aggregation, piece.mask, piece.sequences) for aggregation in AGGREGATIONS),
        ]

    found = [sum(values) for values in zip(*TwoSlices(inputs, lengths, heads).run(sums), strict=True)]
    assert found == pytest.approx(sums(inputs), abs=1e-6)
