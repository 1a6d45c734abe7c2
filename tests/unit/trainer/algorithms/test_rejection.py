import math

import pytest
import torch

from services.trainer.algorithms.rejection import (
    num_sequences_lost,
    without_outliers,
    without_undefined,
    without_vetoed,
)
from tests.unit.trainer.algorithms.packed import sequences, tensor


def test_sequence_with_a_value_that_is_no_number_goes_as_a_whole():
    # sequences: clean; NaN; NaN under the mask only; infinite
    logprobs = tensor([-1.0, -1.0, -1.0, math.nan, math.nan, -1.0, -math.inf, -1.0])
    mask = torch.tensor([True, False, True, True, False, True, True, True])
    kept = without_undefined(logprobs, mask, sequences(2, 2, 2, 2))
    assert kept.tolist() == [True, False, False, False, False, True, False, False]


@pytest.mark.parametrize(("threshold", "kept"), [(1e-4, [True, True, True]), (0.01, [False, False, True])])
def test_one_token_below_the_threshold_vetoes_its_sequence(threshold, kept):
    # ratios 1 and 0.001; 0.5
    old, mask = tensor([0.0, math.log(0.001), math.log(0.5)]), torch.tensor([True, True, True])
    assert without_vetoed(old, tensor([0.0] * 3), mask, sequences(2, 1), threshold=threshold).tolist() == kept


def test_a_masked_token_vetoes_nothing():
    old, mask = tensor([0.0, -50.0, math.nan]), torch.tensor([True, False, False])
    assert without_vetoed(old, tensor([0.0] * 3), mask, sequences(3), threshold=0.1).tolist() == [True, False, False]


def test_a_ratio_far_below_every_threshold_is_vetoed_in_spite_of_the_clamp():
    old, mask = tensor([-900.0]), torch.tensor([True])
    assert without_vetoed(old, tensor([0.0]), mask, sequences(1), threshold=1e-8).tolist() == [False]


def test_tokens_outside_the_bounds_leave_the_mask_and_the_bounds_themselves_stay():
    ratios = tensor([0.49, 0.5, 2.0, 2.01, 1.0, math.nan])
    mask = torch.tensor([True, True, True, True, False, True])
    assert without_outliers(ratios, mask, lower=0.5, upper=2.0).tolist() == [False, True, True, False, False, False]


def test_only_sequences_that_had_a_token_and_have_none_are_lost():
    before = torch.tensor([True, True, True, True, False])
    after = torch.tensor([False, False, True, False, False])
    # lost; one of two left; never had one; empty
    assert num_sequences_lost(before, after, sequences(2, 2, 1, 0)) == 1
    assert num_sequences_lost(before, before, sequences(2, 2, 1, 0)) == 0
