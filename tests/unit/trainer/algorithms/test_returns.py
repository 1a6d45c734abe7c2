import math
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from services.trainer.algorithms.returns import Moments, moments, rewards_to_go, whitened
from tests.unit.trainer.algorithms.packed import sequences, tensor, unmasked


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


def test_discount_and_penalty_by_hand():
    # reward 8 - 1 at the last token; then 0.5 x 7 - 2; then 0.5 x 1.5 - 4
    found = rewards_to_go(tensor([8.0] * 3), tensor([4.0, 2.0, 1.0]), unmasked(3), sequences(3), discount=0.5)
    assert found.tolist() == [-3.25, 1.5, 7.0]


@given(
    lengths=st.lists(st.integers(0, 9), max_size=5),
    discount=st.floats(0.01, 1.0),
    seed=st.integers(0, 10_000),
)
@settings(max_examples=60, deadline=None)
def test_it_is_the_double_sum_of_its_definition(lengths, discount, seed):
    source = random.Random(seed)
    num = sum(lengths)
    mask = [source.random() < 0.6 for _ in range(num)]
    penalties = [source.uniform(-1, 1) if counts else math.nan for counts in mask]
    advantages = [source.uniform(-2, 2) if counts else math.inf for counts in mask]
    expected, start = [0.0] * num, 0
    for length in lengths:
        counted = [place for place in range(start, start + length) if mask[place]]
        for place in counted:
            later = [other for other in counted if other >= place]
            penalty = sum(discount ** (other - place) * penalties[other] for other in later)
            expected[place] = discount ** (counted[-1] - place) * advantages[counted[-1]] - penalty
        start += length
    found = rewards_to_go(
        tensor(advantages),
        tensor(penalties),
        torch.tensor(mask, dtype=torch.bool),
        sequences(*lengths),
        discount=discount,
    )
    assert found.tolist() == pytest.approx(expected, abs=1e-9)


def test_without_penalty_and_discount_every_token_has_its_samples_advantage():
    advantages, mask = tensor([1.5, 1.5, 1.5, -2.0, -2.0]), torch.tensor([True, False, True, True, False])
    found = rewards_to_go(advantages, tensor([0.0] * 5), mask, sequences(3, 0, 2), discount=1.0)
    assert found.tolist() == [1.5, 0.0, 1.5, -2.0, 0.0]


@pytest.mark.parametrize(("num", "lengths"), [(0, ()), (0, (0, 0)), (3, (2, 0, 1))])
def test_nothing_counted_returns_nothing(num, lengths):
    nan, mask = tensor([math.nan] * num), torch.zeros(num, dtype=torch.bool)
    assert rewards_to_go(nan, nan, mask, sequences(*lengths), discount=0.9).tolist() == [0.0] * num
    assert moments([nan], [mask]) == Moments(count=0.0, total=0.0, squares=0.0)
    assert whitened(nan, mask, moments([nan], [mask])).tolist() == [0.0] * num


def test_a_long_sequence_is_summed_to_its_end_and_no_further():
    # 5000 tokens of penalty 1, then another sequence; a geometric series
    num, discount = 5000, 0.999
    penalties, advantages = torch.ones(num + 1, dtype=torch.float64), torch.zeros(num + 1, dtype=torch.float64)
    found = rewards_to_go(advantages, penalties, unmasked(num + 1), sequences(num, 1), discount=discount)
    for place in (0, 1, 2047, 2048, 4998, 4999):
        assert found[place].item() == pytest.approx(-(1 - discount ** (num - place)) / (1 - discount))
    assert found[-1].item() == -1.0


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


def test_infinity_under_the_mask_is_in_no_moment_and_whitens_to_zero():
    values, mask = tensor([1.0, math.inf, 3.0, -math.inf]), torch.tensor([True, False, True, False])
    whole = moments([values], [mask])
    assert whole == Moments(count=2.0, total=4.0, squares=10.0)
    # mean 2, unbiased variance 2
    half = 1 / math.sqrt(2 + 1e-8)
    assert whitened(values, mask, whole).tolist() == pytest.approx([-half, 0.0, half, 0.0])


def test_the_floor_of_the_variance_is_1e_8():
    # values 0 and 1e-4: mean 5e-5, variance 2 (5e-5)^2 = 5e-9
    values = tensor([0.0, 1e-4])
    half = 5e-5 / math.sqrt(5e-9 + 1e-8)
    assert whitened(values, unmasked(2), moments([values], [unmasked(2)])).tolist() == pytest.approx([-half, half])


def test_equal_values_of_any_size_whiten_to_zero():
    # the squares of large numbers leave a variance of rounding errors, which may even be negative
    for value in (1e4 + 0.1, 12345.678, 98765.4321, -54321.1):
        for num in (3, 7, 11, 101):
            values = torch.full((num,), value, dtype=torch.float64)
            found = whitened(values, unmasked(num), moments([values], [unmasked(num)]))
            assert found.tolist() == pytest.approx([0.0] * num, abs=1e-5)


def test_moments_of_single_precision_are_taken_in_double():
    # 2^24 + 1 is no single-precision number; nor is the mean of the two values
    values = torch.tensor([2.0**24, 1.0], dtype=torch.float32)
    assert moments([values], [unmasked(2)]) == Moments(count=2.0, total=2.0**24 + 1, squares=2.0**48 + 1)
    near = torch.tensor([1.0, 1.0 + 2**-23], dtype=torch.float32)
    whole = moments([near], [unmasked(2)])
    # mean 1 + 2^-24, half a unit in the last place away from each; variance 2^-47, far below the floor
    half = 2**-24 / math.sqrt(2**-47 + 1e-8)
    assert whitened(near, unmasked(2), whole).tolist() == pytest.approx([-half, half], rel=1e-3)


@given(
    parts=st.lists(st.lists(st.floats(-50, 50), max_size=6), min_size=1, max_size=5),
    seed=st.integers(0, 1000),
)
@settings(deadline=None)
def test_moments_of_any_parts_add_up_to_those_of_the_whole(parts, seed):
    source = random.Random(seed)
    masks = [[source.random() < 0.7 for _ in part] for part in parts]
    seen = [
        value
        for part, mask in zip(parts, masks, strict=True)
        for value, counts in zip(part, mask, strict=True)
        if counts
    ]
    tensors = [(tensor(part), torch.tensor(mask, dtype=torch.bool)) for part, mask in zip(parts, masks, strict=True)]
    separate = [moments([values], [mask]) for values, mask in tensors]
    whole = moments([values for values, _ in tensors], [mask for _, mask in tensors])
    for name, expected in (("count", len(seen)), ("total", sum(seen)), ("squares", sum(v * v for v in seen))):
        assert getattr(whole, name) == pytest.approx(expected, abs=1e-9)
        assert sum(getattr(part, name) for part in separate) == pytest.approx(expected, abs=1e-9)
