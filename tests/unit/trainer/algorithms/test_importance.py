import math

import pytest
import torch

from services.trainer.algorithms.importance import (
    absolute_mismatch,
    mask_without_rejected,
    truncated_weights,
)


def test_weight_is_the_probability_ratio_up_to_the_cap():
    old = torch.tensor([math.log(0.3), math.log(0.9), math.log(0.5)], dtype=torch.float64)
    engine = torch.tensor([math.log(0.6), math.log(0.1), math.log(0.5)], dtype=torch.float64)
    weights = truncated_weights(old, engine, torch.tensor([True, True, True]), cap=2.0)
    assert weights.tolist() == pytest.approx([0.5, 2.0, 1.0])


def test_masked_positions_weigh_nothing_whatever_they_hold():
    old = torch.tensor([-1.0, math.nan, -3.0])
    engine = torch.tensor([-1.0, 0.0, -math.inf])
    weights = truncated_weights(old, engine, torch.tensor([True, False, False]), cap=2.0)
    assert weights.tolist() == [1.0, 0.0, 0.0]


def test_cap_of_zero_switches_it_off():
    weights = truncated_weights(torch.tensor([-5.0, -5.0]), torch.zeros(2), torch.tensor([True, False]), cap=0.0)
    assert weights.tolist() == [1.0, 0.0]


def test_weights_carry_no_gradient():
    old = torch.tensor([-1.0], requires_grad=True)
    assert not truncated_weights(old, torch.tensor([-2.0]), torch.tensor([True]), cap=2.0).requires_grad


def test_vanishing_probability_gives_a_finite_weight():
    weights = truncated_weights(torch.tensor([-2000.0]), torch.zeros(1), torch.tensor([True]), cap=2.0)
    assert weights.item() == pytest.approx(math.exp(-20))


def test_mismatch_is_absolute_and_zero_where_masked():
    mismatch = absolute_mismatch(
        torch.tensor([-1.0, -1.0, math.nan]), torch.tensor([-0.75, -1.5, 0.0]), torch.tensor([True, True, False])
    )
    assert mismatch.tolist() == [0.25, 0.5, 0.0]


def test_sequence_with_a_value_that_is_no_number_is_rejected_as_a_whole_and_counted():
    # sequences: clean; NaN; NaN under the mask only; infinite
    logprobs = torch.tensor([-1.0, -1.0, -1.0, math.nan, math.nan, -1.0, -math.inf, -1.0])
    mask = torch.tensor([True, False, True, True, False, True, True, True])
    accepted, num_rejected = mask_without_rejected(logprobs, mask, torch.tensor([0, 2, 4, 6, 8], dtype=torch.int32))
    assert accepted.tolist() == [True, False, False, False, False, True, False, False]
    assert num_rejected == 2


def test_nothing_is_rejected_from_clean_or_empty_input():
    cu_seqlens = torch.tensor([0, 1], dtype=torch.int32)
    accepted, num_rejected = mask_without_rejected(torch.tensor([math.nan]), torch.tensor([False]), cu_seqlens)
    assert (accepted.tolist(), num_rejected) == ([False], 0)
