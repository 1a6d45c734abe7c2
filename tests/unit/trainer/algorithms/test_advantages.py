import math
import random
import statistics

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from services.trainer.algorithms.advantages import group_centred, leave_one_out, plain_rewards
from tests.unit.trainer.algorithms.packed import tensor

ESTIMATORS = {
    "normalised": lambda rewards, sizes: group_centred(rewards, group_sizes=sizes, normalize_std=True),
    "centred": lambda rewards, sizes: group_centred(rewards, group_sizes=sizes, normalize_std=False),
    "leave one out": lambda rewards, sizes: leave_one_out(rewards, group_sizes=sizes),
}


def _advantages(name, rewards, sizes):
    return ESTIMATORS[name](tensor(rewards), sizes).tolist()


def test_reward_is_centred_and_divided_by_the_unbiased_deviation():
    # rewards 1 0 0 0: mean 1/4, unbiased variance (9 + 3) / 16 / 3 = 1/4, deviation 1/2
    expected = [0.75 / (0.5 + 1e-6)] + [-0.25 / (0.5 + 1e-6)] * 3
    assert _advantages("normalised", [1.0, 0.0, 0.0, 0.0], [4]) == pytest.approx(expected, rel=1e-12)


def test_without_deviation_the_reward_is_only_centred():
    assert _advantages("centred", [1.0, 0.0, 0.0, 0.0], [4]) == [0.75, -0.25, -0.25, -0.25]


def test_leave_one_out_takes_off_the_mean_of_the_others():
    # 3 - (1 + 0 + 0) / 3, 1 - 3 / 3, 0 - 4 / 3
    assert _advantages("leave one out", [3.0, 1.0, 0.0, 0.0], [4]) == pytest.approx([8 / 3, 0.0, -4 / 3, -4 / 3])


def test_plain_rewards_stay_as_they_are():
    assert plain_rewards(tensor([0.5, math.nan, -1.0])).tolist() == [0.5, 0.0, -1.0]


@pytest.mark.parametrize("name", ESTIMATORS)
def test_groups_are_independent_and_agree_with_a_loop(name):
    source = random.Random(0)
    groups = [[source.random() for _ in range(size)] for size in (2, 5, 3)]
    expected = []
    for group in groups:
        for index, reward in enumerate(group):
            others = group[:index] + group[index + 1 :]
            if name == "leave one out":
                expected.append(reward - sum(others) / len(others))
            else:
                deviation = statistics.stdev(group) + 1e-6 if name == "normalised" else 1.0
                expected.append((reward - statistics.fmean(group)) / deviation)
    found = _advantages(name, [reward for group in groups for reward in group], [len(group) for group in groups])
    assert found == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("name", ESTIMATORS)
def test_equal_rewards_and_a_group_of_one_give_exact_zeros(name):
    # 0.1 summed three times and divided by three is not 0.1 in floating point
    advantages = _advantages(name, [0.1, 0.1, 0.1, 7.0, 1.0, 0.0], [3, 1, 2])
    assert advantages[:4] == [0.0] * 4
    assert advantages[4] > 0 > advantages[5]


@pytest.mark.parametrize("name", ESTIMATORS)
def test_a_failed_sample_has_no_advantage_and_is_in_no_statistic(name):
    clean = _advantages(name, [1.0, 0.0, 0.0], [3])
    found = _advantages(name, [1.0, math.nan, 0.0, 0.0, math.nan, 5.0, math.nan, math.nan], [4, 2, 2])
    # the second group is left with one, the third with none
    assert found == pytest.approx([clean[0], 0.0, clean[1], clean[2], 0.0, 0.0, 0.0, 0.0], rel=1e-12)


@pytest.mark.parametrize("failed", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("name", ESTIMATORS)
def test_infinite_rewards_are_failures_too(name, failed):
    clean = _advantages(name, [1.0, 0.25], [2])
    assert _advantages(name, [1.0, failed, 0.25], [3]) == [clean[0], 0.0, clean[1]]
    assert plain_rewards(tensor([failed, 0.25])).tolist() == [0.0, 0.25]


@pytest.mark.parametrize("name", ESTIMATORS)
def test_a_round_without_any_reward_has_no_advantage(name):
    assert _advantages(name, [math.nan] * 3, [2, 1]) == [0.0] * 3


@given(st.lists(st.floats(-100, 100), min_size=2, max_size=9))
def test_leave_one_out_is_the_centred_reward_times_n_over_n_less_one(rewards):
    num = len(rewards)
    scaled = [value * num / (num - 1) for value in _advantages("centred", rewards, [num])]
    assert _advantages("leave one out", rewards, [num]) == pytest.approx(scaled, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("name", ESTIMATORS)
@given(first=st.lists(st.floats(-10, 10), min_size=1, max_size=6), second=st.lists(st.floats(-10, 10), max_size=6))
def test_advantages_of_a_group_add_up_to_zero_and_no_group_sees_another(name, first, second):
    found = _advantages(name, first + second, [len(first), len(second)])
    assert sum(found[: len(first)]) == pytest.approx(0.0, abs=1e-7)
    assert found == _advantages(name, first, [len(first)]) + _advantages(name, second, [len(second)])


@given(st.lists(st.floats(-10, 10), min_size=2, max_size=8), st.floats(-5, 5))
def test_normalised_advantages_do_not_depend_on_the_offset_of_rewards(rewards, offset):
    moved = _advantages("normalised", [reward + offset for reward in rewards], [len(rewards)])
    spread = max(rewards) - min(rewards)
    if spread > 1e-3:
        assert moved == pytest.approx(_advantages("normalised", rewards, [len(rewards)]), abs=1e-6)


def test_rewards_that_differ_by_rounding_alone_keep_a_finite_advantage():
    # one unit in the last place apart, 2.2e-16, over the floor of 1e-6; without the floor it would be about 1
    advantages = _advantages("normalised", [1.0, 1.0 + 2**-52], [2])
    assert max(map(abs, advantages)) == pytest.approx(2.2e-10, rel=0.01)


def test_rewards_are_left_as_they_are_and_their_type_is_kept():
    rewards = torch.tensor([1.0, math.nan, 0.0], dtype=torch.float32)
    for advantages in (ESTIMATORS["normalised"](rewards, [3]), plain_rewards(rewards)):
        assert advantages.dtype == torch.float32
    assert (rewards[0].item(), rewards[2].item()) == (1.0, 0.0)
    assert rewards[1].isnan()


@pytest.mark.parametrize("name", ESTIMATORS)
def test_no_group_gives_nothing(name):
    assert _advantages(name, [], []) == []
