import math

import pytest
import torch

from services.trainer.algorithms.importance import GEOMETRIC, SEQUENCE, TOKEN, level_ratios
from services.trainer.algorithms.rejection import (
    num_sequences_lost,
    without_outliers,
    without_undefined,
    without_vetoed,
)
from tests.unit.trainer.algorithms.packed import by_sequence, random_inputs, sequences, tensor, unmasked


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


def test_a_masked_token_vetoes_nothing_even_under_a_threshold_above_one():
    # ratio 2; a masked neighbour has no ratio, not one of 1
    old, mask = tensor([math.log(2), math.nan]), torch.tensor([True, False])
    assert without_vetoed(old, tensor([0.0] * 2), mask, sequences(2), threshold=1.5).tolist() == [True, False]


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


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_every_kind_of_undefined_value_counts_and_none_does_under_the_mask(bad):
    logprobs, layout = tensor([-1.0, bad, -1.0]), sequences(2, 1)
    assert without_undefined(logprobs, unmasked(3), layout).tolist() == [False, False, True]
    hidden = torch.tensor([True, False, True])
    assert without_undefined(logprobs, hidden, layout).tolist() == hidden.tolist()


def test_a_sum_of_log_probabilities_shows_what_any_of_them_has():
    # inf - inf is NaN, so opposite infinities do not hide each other
    first, second = tensor([math.inf, -1.0, -1.0]), tensor([-math.inf, math.nan, -1.0])
    assert without_undefined(first + second, unmasked(3), sequences(1, 1, 1)).tolist() == [False, False, True]


def test_a_ratio_of_exactly_the_threshold_is_no_veto():
    # a ratio of 1 is exact in floating point
    assert without_vetoed(tensor([-1.0]), tensor([-1.0]), unmasked(1), sequences(1), threshold=1.0).tolist() == [True]


def test_a_threshold_below_the_clamp_vetoes_nothing():
    # exp(-20) is 2.06e-9, and every smaller ratio counts as that
    old, engine = tensor([-900.0]), tensor([0.0])
    assert without_vetoed(old, engine, unmasked(1), sequences(1), threshold=2e-9).tolist() == [True]
    assert without_vetoed(old, engine, unmasked(1), sequences(1), threshold=2.1e-9).tolist() == [False]


def test_a_likelier_trainer_is_no_veto_and_a_veto_stays_in_its_sequence():
    old, engine = tensor([0.0, -1.0, -9.0, -1.0]), tensor([-900.0, -1.0, -1.0, -1.0])
    kept = without_vetoed(old, engine, unmasked(4), sequences(2, 1, 1), threshold=0.01)
    assert kept.tolist() == [True, True, False, True]


def test_tokens_that_were_masked_stay_masked():
    mask, zeros, layout = torch.tensor([True, False]), tensor([0.0, 0.0]), sequences(1, 1)
    assert without_undefined(zeros, mask, layout).tolist() == [True, False]
    assert without_vetoed(zeros, zeros, mask, layout, threshold=0.5).tolist() == [True, False]
    assert without_outliers(tensor([1.0, 1.0]), mask, lower=0.5, upper=2.0).tolist() == [True, False]


@pytest.mark.parametrize("level", [TOKEN, SEQUENCE, GEOMETRIC])
@pytest.mark.parametrize("seed", range(4))
def test_outliers_of_the_three_levels_agree_with_a_loop(level, seed):
    inputs = random_inputs((4, 1, 0, 6, 3), seed=seed)
    ratios = level_ratios(level, inputs.logprobs, inputs.old_logprobs, inputs.mask, inputs.sequences)
    kept = without_outliers(ratios, inputs.mask, lower=0.9, upper=1.15)
    expected = []
    tables = (by_sequence(v.detach(), inputs.mask, inputs.sequences) for v in (inputs.logprobs, inputs.old_logprobs))
    for olds, engines in zip(*tables, strict=True):
        logs = [old - engine for old, engine in zip(olds, engines, strict=True)]
        for log in logs:
            value = {TOKEN: log, SEQUENCE: sum(logs), GEOMETRIC: sum(logs) / len(logs)}[level]
            expected.append(0.9 <= math.exp(value) <= 1.15)
    assert kept[inputs.mask].tolist() == expected
    assert not kept[~inputs.mask].any()


def test_the_levels_judge_the_same_sequence_differently():
    # ratios 2, 2 and 0.25: outside by token, 1 as a product and as a mean; then 1.5 four times: 5 as a product
    old = tensor([math.log(r) for r in (2.0, 2.0, 0.25, 1.5, 1.5, 1.5, 1.5)])
    engine, layout, mask = tensor([0.0] * 7), sequences(3, 4), unmasked(7)
    kept = {
        level: without_outliers(level_ratios(level, old, engine, mask, layout), mask, lower=0.6, upper=1.6).tolist()
        for level in (TOKEN, SEQUENCE, GEOMETRIC)
    }
    assert kept[TOKEN] == [False] * 3 + [True] * 4
    assert kept[SEQUENCE] == [True] * 3 + [False] * 4
    assert kept[GEOMETRIC] == [True] * 7


@pytest.mark.parametrize(("num", "lengths"), [(0, ()), (0, (0,)), (2, (1, 0, 1))])
def test_nothing_counted_is_nothing_rejected(num, lengths):
    nan, mask, layout = tensor([math.nan] * num), torch.zeros(num, dtype=torch.bool), sequences(*lengths)
    for kept in (
        without_undefined(nan, mask, layout),
        without_vetoed(nan, nan, mask, layout, threshold=0.5),
        without_outliers(nan, mask, lower=0.5, upper=2.0),
    ):
        assert kept.tolist() == [False] * num
        assert num_sequences_lost(mask, kept, layout) == 0
