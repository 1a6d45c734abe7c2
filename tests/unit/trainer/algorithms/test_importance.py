import math

import pytest
import torch

from services.trainer.algorithms.importance import (
    GEOMETRIC,
    SEQUENCE,
    TOKEN,
    absolute_mismatch,
    clipped,
    level_ratios,
    masked,
    normalized,
    truncated,
    unweighted,
    weight_sums,
)
from tests.unit.trainer.algorithms.packed import by_sequence, random_inputs, sequences, tensor, unmasked

LEVELS = (TOKEN, SEQUENCE, GEOMETRIC)


def test_ratios_of_the_three_levels_by_hand():
    # sequences: ratios 2 and 0.125; ratio 3 with a masked neighbour
    old = tensor([math.log(2), math.log(0.125), math.log(3), math.nan])
    engine = tensor([0.0, 0.0, 0.0, -math.inf])
    mask, layout = torch.tensor([True, True, True, False]), sequences(2, 2)
    expected = {TOKEN: [2.0, 0.125, 3.0], SEQUENCE: [0.25, 0.25, 3.0], GEOMETRIC: [0.5, 0.5, 3.0]}
    for level in LEVELS:
        ratios = level_ratios(level, old, engine, mask, layout)
        assert ratios[:3].tolist() == pytest.approx(expected[level])
        assert ratios.isfinite().all()


@pytest.mark.parametrize("level", LEVELS)
def test_ratios_agree_with_a_loop(level):
    inputs = random_inputs((4, 1, 0, 6), seed=1)
    found = level_ratios(level, inputs.logprobs, inputs.old_logprobs, inputs.mask, inputs.sequences)
    assert not found.requires_grad
    expected = []
    rows = (by_sequence(v.detach(), inputs.mask, inputs.sequences) for v in (inputs.logprobs, inputs.old_logprobs))
    for olds, engines in zip(*rows, strict=True):
        logs = [a - b for a, b in zip(olds, engines, strict=True)]
        for value in logs:
            total = {TOKEN: value, SEQUENCE: sum(logs), GEOMETRIC: sum(logs) / len(logs)}[level]
            expected.append(math.exp(total))
    assert found[inputs.mask].tolist() == pytest.approx(expected)


@pytest.mark.parametrize("level", LEVELS)
def test_a_long_mismatch_stays_finite(level):
    old, engine = tensor([-90.0] * 300), tensor([0.0] * 300)
    ratios = level_ratios(level, old, engine, torch.ones(300, dtype=torch.bool), sequences(300))
    assert ratios.tolist() == pytest.approx([math.exp(-20)] * 300)


def test_the_modes_by_hand():
    ratios, mask = tensor([0.25, 1.0, 4.0, 9.0]), torch.tensor([True, True, True, False])
    cut = truncated(ratios, mask, upper=2.0)
    assert (cut.weights.tolist(), cut.is_cut.tolist()) == ([0.25, 1.0, 2.0, 0.0], [False, False, True, False])
    both = clipped(ratios, mask, lower=0.5, upper=2.0)
    assert (both.weights.tolist(), both.is_cut.tolist()) == ([0.5, 1.0, 2.0, 0.0], [True, False, True, False])
    inside = masked(ratios, mask, lower=0.5, upper=2.0)
    assert (inside.weights.tolist(), inside.is_cut.tolist()) == ([0.0, 1.0, 0.0, 0.0], [True, False, True, False])
    off = unweighted(mask)
    assert (off.weights.tolist(), off.is_cut.tolist()) == ([1.0, 1.0, 1.0, 0.0], [False] * 4)


def test_bounds_themselves_are_inside():
    ratios, mask = tensor([0.5, 2.0]), torch.tensor([True, True])
    assert masked(ratios, mask, lower=0.5, upper=2.0).weights.tolist() == [0.5, 2.0]
    assert not clipped(ratios, mask, lower=0.5, upper=2.0).is_cut.any()
    assert not truncated(ratios, mask, upper=2.0).is_cut.any()


def test_masked_positions_weigh_nothing_whatever_they_hold():
    ratios, mask = tensor([1.5, math.nan, math.inf]), torch.tensor([True, False, False])
    for result in (
        truncated(ratios, mask, upper=2.0),
        clipped(ratios, mask, lower=0.5, upper=2.0),
        masked(ratios, mask, lower=0.5, upper=2.0),
    ):
        assert result.weights.tolist() == [1.5, 0.0, 0.0]
        assert result.is_cut.tolist() == [False, False, False]


def test_sums_are_over_tokens_or_over_sequences_with_a_token():
    weights = tensor([1.0, 3.0, math.nan, 5.0, math.nan])
    mask, layout = torch.tensor([True, True, False, True, False]), sequences(3, 1, 1)
    assert weight_sums(TOKEN, weights, mask, layout) == (9.0, 3.0)
    # at the other levels every token of a sequence has its weight; the mean of 1 and 3 stands for it here
    assert weight_sums(SEQUENCE, weights, mask, layout) == (7.0, 2.0)
    nothing = torch.zeros(5, dtype=torch.bool)
    assert (
        weight_sums(TOKEN, weights, nothing, layout) == weight_sums(GEOMETRIC, weights, nothing, layout) == (0.0, 0.0)
    )


@pytest.mark.parametrize("level", LEVELS)
def test_sums_of_parts_are_those_of_the_whole(level):
    inputs = random_inputs((4, 2, 0, 5, 1), seed=3)
    ratios = level_ratios(level, inputs.logprobs, inputs.old_logprobs, inputs.mask, inputs.sequences)
    whole = weight_sums(level, ratios, inputs.mask, inputs.sequences)
    left = weight_sums(level, ratios[:6], inputs.mask[:6], sequences(4, 2))
    right = weight_sums(level, ratios[6:], inputs.mask[6:], sequences(0, 5, 1))
    assert (left[0] + right[0], left[1] + right[1]) == pytest.approx(whole)


def test_weights_are_divided_by_their_mean_unless_it_is_zero():
    assert normalized(tensor([1.0, 3.0]), mean=2.0).tolist() == [0.5, 1.5]
    assert normalized(tensor([0.0, 0.0]), mean=0.0).tolist() == [0.0, 0.0]


def test_a_tiny_mean_is_still_a_mean():
    assert normalized(tensor([1e-12, 3e-12]), mean=2e-12).tolist() == pytest.approx([0.5, 1.5])


MODES = {
    "truncate": (lambda r, m: truncated(r, m, upper=1.2), lambda r: min(r, 1.2), lambda r: r > 1.2),
    "clip": (
        lambda r, m: clipped(r, m, lower=0.8, upper=1.2),
        lambda r: min(max(r, 0.8), 1.2),
        lambda r: not 0.8 <= r <= 1.2,
    ),
    "mask": (
        lambda r, m: masked(r, m, lower=0.8, upper=1.2),
        lambda r: r if 0.8 <= r <= 1.2 else 0.0,
        lambda r: not 0.8 <= r <= 1.2,
    ),
}
"""Each mode; the weight of a ratio; whether it is cut."""


def _slow_weights(level, weight_of, inputs):
    """[sequence][token] in loops."""
    tables = (by_sequence(v.detach(), inputs.mask, inputs.sequences) for v in (inputs.logprobs, inputs.old_logprobs))
    rows = []
    for olds, engines in zip(*tables, strict=True):
        ratios = [math.exp(a) / math.exp(b) for a, b in zip(olds, engines, strict=True)]
        if level != TOKEN and ratios:
            product = math.prod(ratios)
            ratios = [product if level == SEQUENCE else product ** (1 / len(ratios))] * len(ratios)
        rows.append([weight_of(ratio) for ratio in ratios])
    return rows


def _flat(rows):
    return [value for row in rows for value in row]


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("seed", range(3))
def test_every_mode_at_every_level_agrees_with_a_loop_and_masked_tokens_weigh_nothing(mode, level, seed):
    inputs = random_inputs((4, 1, 0, 6, 3), seed=seed)
    weigh, weight_of, is_cut = MODES[mode]
    ratios = level_ratios(level, inputs.logprobs, inputs.old_logprobs, inputs.mask, inputs.sequences)
    found = weigh(ratios, inputs.mask)
    assert not found.weights.requires_grad
    assert found.weights[inputs.mask].tolist() == pytest.approx(_flat(_slow_weights(level, weight_of, inputs)))
    assert found.is_cut[inputs.mask].tolist() == _flat(_slow_weights(level, is_cut, inputs))
    assert found.weights[~inputs.mask].abs().sum().item() == 0.0
    assert not found.is_cut[~inputs.mask].any()


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("mode", MODES)
def test_normalised_over_all_parts_the_weights_are_those_of_the_whole_and_have_a_mean_of_one(mode, level):
    """Three micro-batches, one of them without a counted token; a mean of means would weigh their tokens unequally."""
    weigh, weight_of, _ = MODES[mode]
    parts = [random_inputs((4, 1), seed=1), random_inputs((2, 0, 9, 5), seed=2), random_inputs((3,), seed=3)]
    masks = [parts[0].mask, parts[1].mask, torch.zeros(3, dtype=torch.bool)]
    weights, sums = [], []
    for part, mask in zip(parts, masks, strict=True):
        ratios = level_ratios(level, part.logprobs, part.old_logprobs, mask, part.sequences)
        weights.append(weigh(ratios, mask).weights)
        sums.append(weight_sums(level, weights[-1], mask, part.sequences))
    mean = sum(total for total, _ in sums) / sum(count for _, count in sums)
    rows = [row for part in parts[:2] for row in _slow_weights(level, weight_of, part) if row]
    flat = _flat(rows) if level == TOKEN else [row[0] for row in rows]
    assert mean == pytest.approx(sum(flat) / len(flat))
    found = torch.cat([normalized(w, mean=mean)[m] for w, m in zip(weights, masks, strict=True)])
    assert found.tolist() == pytest.approx([weight / mean for weight in _flat(rows)])


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(("num", "lengths"), [(0, ()), (0, (0, 0)), (3, (2, 0, 1))])
def test_nothing_counted_has_no_weight_and_no_count(level, num, lengths):
    nan, mask, layout = tensor([math.nan] * num), torch.zeros(num, dtype=torch.bool), sequences(*lengths)
    ratios = level_ratios(level, nan, nan, mask, layout)
    assert ratios.isfinite().all()
    for weigh, _, _ in MODES.values():
        weights = weigh(ratios, mask).weights
        assert weights.tolist() == [0.0] * num
        assert weight_sums(level, weights, mask, layout) == (0.0, 0.0)


@pytest.mark.parametrize("level", LEVELS)
def test_a_likelier_engine_and_a_likelier_trainer_are_both_bounded(level):
    old, engine = tensor([0.0, 0.0, -800.0]), tensor([-800.0, -800.0, 0.0])
    ratios = level_ratios(level, old, engine, unmasked(3), sequences(2, 1))
    assert ratios.tolist() == pytest.approx([math.exp(20), math.exp(20), math.exp(-20)])


def test_weights_and_mismatch_carry_no_gradient_to_the_trainers_log_probabilities():
    old = tensor([-1.0, -2.0]).requires_grad_()
    for level in LEVELS:
        assert not level_ratios(level, old, tensor([-1.5, -1.5]), unmasked(2), sequences(2)).requires_grad
    assert not absolute_mismatch(old, tensor([-1.5, -1.5]), unmasked(2)).requires_grad


def test_mismatch_is_absolute_and_zero_where_masked():
    mismatch = absolute_mismatch(
        tensor([-1.0, -1.0, math.nan, -90.0]), tensor([-0.75, -1.5, 0.0, 0.0]), torch.tensor([True, True, False, True])
    )
    assert mismatch.tolist() == [0.25, 0.5, 0.0, 20.0]
