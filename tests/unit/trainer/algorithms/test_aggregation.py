import math

import pytest
import torch

from services.trainer.algorithms.aggregation import (
    SEQUENCE_MEAN,
    SEQUENCE_SUM,
    TOKEN_MEAN,
    aggregation_count,
    aggregation_weights,
    token_count,
    token_sum,
)
from tests.unit.trainer.algorithms.packed import by_sequence, sequences, tensor

ALL = (TOKEN_MEAN, SEQUENCE_MEAN, SEQUENCE_SUM)


def _aggregate(aggregation, values, mask, layout):
    weights = aggregation_weights(aggregation, mask, layout, divisor_tokens=8.0)
    total = (torch.where(mask, values, torch.zeros_like(values)) * weights).sum()
    return float(total) / aggregation_count(aggregation, mask, layout)


def test_the_three_aggregates_by_hand():
    values = tensor([1.0, 3.0, math.nan, 10.0, math.nan])
    mask = torch.tensor([True, True, False, True, False])
    # sequences of 3, 0, 1 and 1 tokens; the last is masked and the empty one has nothing: neither counts
    layout = sequences(3, 0, 1, 1)
    assert _aggregate(TOKEN_MEAN, values, mask, layout) == pytest.approx(14 / 3)
    assert _aggregate(SEQUENCE_MEAN, values, mask, layout) == pytest.approx((2 + 10) / 2)
    assert _aggregate(SEQUENCE_SUM, values, mask, layout) == pytest.approx((4 + 10) / 8 / 2)


@pytest.mark.parametrize("seed", range(3))
def test_they_agree_with_loops(seed):
    generator = torch.Generator().manual_seed(seed)
    layout = sequences(4, 1, 6, 0, 3)
    values = torch.randn(14, dtype=torch.float64, generator=generator)
    mask = torch.rand(14, generator=generator) > 0.4
    rows = [row for row in by_sequence(values, mask, layout) if row]
    expected = {
        TOKEN_MEAN: sum(sum(row) for row in rows) / sum(len(row) for row in rows),
        SEQUENCE_MEAN: sum(sum(row) / len(row) for row in rows) / len(rows),
        SEQUENCE_SUM: sum(sum(row) / 8 for row in rows) / len(rows),
    }
    for aggregation in ALL:
        assert _aggregate(aggregation, values, mask, layout) == pytest.approx(expected[aggregation], rel=1e-6)


@pytest.mark.parametrize("aggregation", ALL)
def test_weights_are_zero_where_masked_and_everything_masked_counts_nothing(aggregation):
    layout, mask = sequences(2, 1), torch.tensor([False, False, False])
    assert aggregation_weights(aggregation, mask, layout, divisor_tokens=8.0).tolist() == [0.0] * 3
    assert aggregation_count(aggregation, mask, layout) == 0


def test_weights_by_hand():
    # sequences: two of three tokens count; none; one; empty
    mask, layout = torch.tensor([True, False, True, False, True]), sequences(3, 1, 1, 0)
    found = {name: aggregation_weights(name, mask, layout, divisor_tokens=8.0) for name in ALL}
    assert found[TOKEN_MEAN].tolist() == [1.0, 0.0, 1.0, 0.0, 1.0]
    assert found[SEQUENCE_MEAN].tolist() == [0.5, 0.0, 0.5, 0.0, 1.0]
    assert found[SEQUENCE_SUM].tolist() == [0.125, 0.0, 0.125, 0.0, 0.125]
    assert {weights.dtype for weights in found.values()} == {torch.float32}
    assert [aggregation_count(name, mask, layout) for name in ALL] == [3, 2, 2]


@pytest.mark.parametrize("aggregation", ALL)
@pytest.mark.parametrize("lengths", [(), (0,), (0, 0)])
def test_a_batch_without_tokens_has_no_weight_and_no_count(aggregation, lengths):
    mask, layout = torch.zeros(0, dtype=torch.bool), sequences(*lengths)
    assert aggregation_weights(aggregation, mask, layout, divisor_tokens=8.0).tolist() == []
    assert aggregation_count(aggregation, mask, layout) == 0


def test_only_sequence_sum_looks_at_the_divisor():
    mask, layout = torch.tensor([True, True, True]), sequences(2, 1)
    for name in (TOKEN_MEAN, SEQUENCE_MEAN):
        first, second = (aggregation_weights(name, mask, layout, divisor_tokens=d) for d in (1.0, 77.0))
        assert first.tolist() == second.tolist()
    assert aggregation_weights(SEQUENCE_SUM, mask, layout, divisor_tokens=0.5).tolist() == [2.0] * 3


def test_sum_and_count_leave_masked_tokens_out():
    values, mask = torch.tensor([1.0, math.nan, 2.5]), torch.tensor([True, False, True])
    assert token_sum(values, mask).item() == 3.5
    assert token_count(mask) == 2


def test_everything_masked_is_zero_with_a_gradient_of_zeros():
    values, mask = torch.tensor([math.nan, 1.0], requires_grad=True), torch.tensor([False, False])
    total = token_sum(values, mask)
    total.backward()
    assert total.item() == 0.0
    assert token_count(mask) == 0
    assert values.grad.tolist() == [0.0, 0.0]


def test_infinity_under_the_mask_is_in_no_sum_and_gradients_reach_unmasked_values_only():
    values = torch.tensor([1.0, math.inf, -math.inf, 2.0], requires_grad=True)
    total = token_sum(values, torch.tensor([True, False, False, True]))
    total.backward()
    assert total.item() == 3.0
    assert values.grad.tolist() == [1.0, 0.0, 0.0, 1.0]
    assert token_sum(torch.zeros(0), torch.zeros(0, dtype=torch.bool)).item() == 0.0
