import math
import random

import pytest
import torch

from services.trainer.algorithms.returns import Moments, moments, rewards_to_go, whitened
from tests.unit.trainer.algorithms.packed import sequences, tensor


def test_a_token_pays_its_own_penalty_and_those_after_it():
    found = rewards_to_go(
        tensor([2.0] * 3), tensor([0.1, 0.2, 0.3]), torch.tensor([True] * 3), sequences(3), discount=1.0
    )
    assert found.tolist() == pytest.approx([2 - 0.6, 2 - 0.5, 2 - 0.3])


def test_the_discount_counts_tokens_to_the_end():
    found = rewards_to_go(tensor([8.0] * 3), tensor([0.0] * 3), torch.tensor([True] * 3), sequences(3), discount=0.5)
    assert found.tolist() == [2.0, 4.0, 8.0]


def test_masked_tokens_have_no_part_and_the_reward_is_at_the_last_unmasked_one():
    advantages = tensor([math.nan, 8.0, math.nan, 8.0, math.nan, 4.0])
    penalties = tensor([math.nan, 0.0, math.inf, 1.0, math.nan, 0.0])
    mask = torch.tensor([False, True, False, True, False, True])
    # sequences of 5 and 1; between the two counted tokens of the first lies a masked one
    found = rewards_to_go(advantages, penalties, mask, sequences(5, 1), discount=0.5)
    assert found.tolist() == [0.0, 0.25 * 7.0, 0.0, 7.0, 0.0, 4.0]


@pytest.mark.parametrize("discount", [1.0, 0.9, 0.3])
def test_it_agrees_with_a_backward_loop(discount):
    source = random.Random(1)
    lengths = (7, 1, 0, 12, 3)
    num = sum(lengths)
    mask = [source.random() < 0.7 for _ in range(num)]
    penalties = [source.uniform(-1, 1) for _ in range(num)]
    advantages, expected, start = [], [0.0] * num, 0
    for length in lengths:
        advantage = source.uniform(-2, 2)
        advantages += [advantage] * length
        counted = [index for index in range(start, start + length) if mask[index]]
        running = 0.0
        for index in reversed(range(start, start + length)):
            reward = -penalties[index] if mask[index] else 0.0
            running = discount * running + reward + (advantage if counted and index == counted[-1] else 0.0)
            expected[index] = running if mask[index] else 0.0
        start += length
    found = rewards_to_go(
        tensor(advantages), tensor(penalties), torch.tensor(mask), sequences(*lengths), discount=discount
    )
    assert found.tolist() == pytest.approx(expected, abs=1e-12)


def test_whitened_values_have_mean_0_and_variance_1_over_the_whole():
    source = random.Random(2)
    parts = [[source.uniform(0, 3) for _ in range(size)] for size in (4, 1, 9)]
    masks = [[source.random() < 0.8 for _ in part] for part in parts]
    values, counts = [tensor(part) for part in parts], [torch.tensor(mask) for mask in masks]
    whole = moments(values, counts)
    found = torch.cat([whitened(value, mask, whole)[mask] for value, mask in zip(values, counts, strict=True)])
    everything = torch.cat([value[mask] for value, mask in zip(values, counts, strict=True)])
    expected = (everything - everything.mean()) / (everything.var(correction=1) + 1e-8).sqrt()
    assert found.tolist() == pytest.approx(expected.tolist())


def test_moments_of_parts_add_up():
    left, right = tensor([1.0, 2.0, math.nan]), tensor([4.0])
    masks = [torch.tensor([True, True, False]), torch.tensor([True])]
    assert moments([left, right], masks) == Moments(count=3.0, total=7.0, squares=21.0)
    assert moments([], []) == Moments(count=0.0, total=0.0, squares=0.0)


def test_equal_values_and_a_single_one_whiten_to_zero_and_nan_under_the_mask_stays_away():
    values, mask = tensor([0.1, 0.1, 0.1, math.nan]), torch.tensor([True, True, True, False])
    assert whitened(values, mask, moments([values], [mask])).tolist() == pytest.approx([0.0] * 4, abs=1e-6)
    single, alone = tensor([5.0, math.nan]), torch.tensor([True, False])
    assert whitened(single, alone, moments([single], [alone])).tolist() == [0.0, 0.0]
    nothing = torch.tensor([False, False])
    assert whitened(single, nothing, moments([single], [nothing])).tolist() == [0.0, 0.0]
