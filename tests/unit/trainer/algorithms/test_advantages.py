import math

import pytest
import torch

from services.trainer.algorithms.advantages import group_normalized


def _advantages(rewards, group_sizes, *, normalize_std=True):
    return group_normalized(
        torch.tensor(rewards, dtype=torch.float64), group_sizes=group_sizes, normalize_std=normalize_std
    ).tolist()


def test_reward_is_centred_and_divided_by_the_unbiased_deviation():
    # rewards 1 0 0 0: mean 1/4, unbiased variance (9 + 3) / 16 / 3 = 1/4, deviation 1/2
    expected = [0.75 / (0.5 + 1e-6)] + [-0.25 / (0.5 + 1e-6)] * 3
    assert _advantages([1.0, 0.0, 0.0, 0.0], [4]) == pytest.approx(expected, rel=1e-12)


def test_without_deviation_the_reward_is_only_centred():
    assert _advantages([1.0, 0.0, 0.0, 0.0], [4], normalize_std=False) == [0.75, -0.25, -0.25, -0.25]


def test_each_group_is_normalised_by_itself():
    # second group 3 1: mean 2, deviation sqrt(2)
    expected = [0.5, -0.5, 1.0, -1.0]
    assert _advantages([1.0, 0.0, 3.0, 1.0], [2, 2], normalize_std=False) == expected
    assert _advantages([1.0, 0.0, 3.0, 1.0], [2, 2])[2] == pytest.approx(1 / (math.sqrt(2) + 1e-6))


@pytest.mark.parametrize("normalize_std", [True, False])
def test_equal_rewards_and_a_group_of_one_give_exact_zeros(normalize_std):
    # 0.1 summed three times and divided by three is not 0.1 in floating point
    rewards = [0.1, 0.1, 0.1, 7.0, 1.0, 0.0]
    advantages = _advantages(rewards, [3, 1, 2], normalize_std=normalize_std)
    assert advantages[:4] == [0.0] * 4
    assert advantages[4] > 0 > advantages[5]


def test_no_group_gives_nothing():
    assert _advantages([], []) == []
