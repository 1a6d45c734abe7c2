"""Where each loss is clipped: both sides, both signs of the advantage, the bounds themselves, the dual clip."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from services.trainer.algorithms.policy_loss import (
    clipped_surrogate,
    clipped_weight,
    sequence_surrogate,
    sequence_token_surrogate,
)
from tests.unit.trainer.algorithms.packed import loss_inputs, tensor

LOW, HIGH = 0.25, 0.5
SURROGATES = {
    "clipped_surrogate": clipped_surrogate,
    "sequence_surrogate": sequence_surrogate,
    "sequence_token_surrogate": sequence_token_surrogate,
}
"""On a sequence of one token all three are the same function."""


def _alone(loss, ratio, advantage, **options):
    """(loss, its derivative by log p, is_clipped) of one token."""
    logprobs = tensor([math.log(ratio)]).requires_grad_()
    result = loss(loss_inputs(logprobs, advantages=[advantage]), clip_low=LOW, clip_high=HIGH, **options)
    result.losses.sum().backward()
    return result.losses.item(), logprobs.grad.item(), result.is_clipped.item()


# (ratio, advantage) -> (loss, derivative, clipped): -min(r A, clip(r) A), and -r A where the first is the smaller
BOUNDARIES = {
    (1.6, 2.0): (-3.0, 0.0, True),
    (1.499, 2.0): (-2.998, -2.998, False),
    (0.751, 2.0): (-1.502, -1.502, False),
    (0.6, 2.0): (-1.2, -1.2, False),
    (1.6, -2.0): (3.2, 3.2, False),
    (1.499, -2.0): (2.998, 2.998, False),
    (0.751, -2.0): (1.502, 1.502, False),
    (0.6, -2.0): (1.5, 0.0, True),
    (1.6, 0.0): (0.0, 0.0, False),
    (0.6, 0.0): (0.0, 0.0, False),
}


@pytest.mark.parametrize(("token", "expected"), BOUNDARIES.items(), ids=map(str, BOUNDARIES))
@pytest.mark.parametrize("name", SURROGATES)
def test_only_the_side_to_which_the_advantage_pushes_is_clipped(name, token, expected):
    assert _alone(SURROGATES[name], *token) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("advantage", [2.0, -2.0])
@pytest.mark.parametrize("name", SURROGATES)
def test_a_ratio_of_exactly_one_has_its_whole_gradient_even_with_clips_of_zero(name, advantage):
    """Both bounds are met exactly, where a minimum of equal numbers could halve the gradient."""
    logprobs = tensor([0.0]).requires_grad_()
    result = SURROGATES[name](loss_inputs(logprobs, advantages=[advantage]), clip_low=0.0, clip_high=0.0)
    result.losses.sum().backward()
    assert (result.losses.item(), logprobs.grad.item(), result.is_clipped.item()) == (-advantage, -advantage, False)


def test_all_tokens_of_a_clipped_sequence_lose_their_gradient_and_those_of_others_keep_it():
    # means of log-ratios: 0.5 with A > 0 (clipped above), 0.5 with A < 0 (not), -0.5 with A < 0 (clipped below)
    logprobs = tensor([0.9, 0.1, 0.9, 0.1, -0.9, -0.1]).requires_grad_()
    inputs = loss_inputs(logprobs, advantages=[1.0, 1.0, -1.0, -1.0, -1.0, -1.0], lengths=(2, 2, 2))
    result = sequence_surrogate(inputs, clip_low=LOW, clip_high=HIGH)
    result.losses.sum().backward()
    ratio = math.exp(0.5)
    assert result.losses.tolist() == pytest.approx([-1.5, -1.5, ratio, ratio, 0.75, 0.75])
    assert result.is_clipped.tolist() == [True, True, False, False, True, True]
    # two tokens, each with half of the ratio's derivative, in the losses of both
    assert logprobs.grad.tolist() == pytest.approx([0.0, 0.0, ratio, ratio, 0.0, 0.0])


def test_the_recipes_narrow_sequence_clips_work_in_single_precision():
    logprobs = torch.tensor([1.5e-4, -0.5e-4, 3e-4, -3e-4], requires_grad=True)
    double = loss_inputs(logprobs.double(), advantages=[1.0, -1.0, 1.0, -1.0], lengths=(1, 1, 1, 1))
    single = replace(
        double, logprobs=logprobs, old_logprobs=double.old_logprobs.float(), advantages=double.advantages.float()
    )
    result = sequence_surrogate(single, clip_low=1e-4, clip_high=2e-4)
    result.losses.sum().backward()
    assert result.is_clipped.tolist() == [False, False, True, True]
    assert result.losses.tolist() == pytest.approx([-1.00015, 0.99995, -1.0002, 0.9999], abs=2e-7)
    assert logprobs.grad.tolist() == pytest.approx([-1.00015, 0.99995, 0.0, 0.0], abs=2e-7)


# (ratio, advantage) -> (loss, derivative, clipped) with the dual clip at 3
DUAL = {
    (2.9, -2.0): (5.8, 5.8, False),
    (3.1, -2.0): (6.0, 0.0, True),
    (1e6, -2.0): (6.0, 0.0, True),
    (0.6, -2.0): (1.5, 0.0, True),
    (3.1, 2.0): (-3.0, 0.0, True),
    (1.1, 2.0): (-2.2, -2.2, False),
    (3.1, 0.0): (0.0, 0.0, False),
}


@pytest.mark.parametrize(("token", "expected"), DUAL.items(), ids=map(str, DUAL))
def test_the_dual_clip_cuts_value_and_gradient_of_negative_advantages_beyond_it(token, expected):
    assert _alone(clipped_surrogate, *token, dual_clip=3.0) == pytest.approx(expected)


@given(log_ratio=st.floats(-4, 4), advantage=st.floats(-3, 3), cut=st.floats(1.5001, 6))
def test_the_dual_clip_changes_nothing_for_positive_advantages_and_bounds_negative_ones(log_ratio, advantage, cut):
    plain = _alone(clipped_surrogate, math.exp(log_ratio), advantage)
    dual = _alone(clipped_surrogate, math.exp(log_ratio), advantage, dual_clip=cut)
    if advantage >= 0 or plain[0] < cut * -advantage:
        assert dual == plain
    else:
        assert dual[:2] == (pytest.approx(-cut * advantage), pytest.approx(0.0, abs=plain[1] / 2))


@given(log_ratio=st.floats(-4, 4), advantage=st.floats(-3, 3))
def test_the_surrogate_never_promises_more_than_the_plain_ratio(log_ratio, advantage):
    """The clip is a pessimistic bound (arXiv 1707.06347, section 3)."""
    loss, derivative, is_clipped = _alone(clipped_surrogate, math.exp(log_ratio), advantage)
    plain = -math.exp(log_ratio) * advantage
    assert loss >= plain - 1e-9
    assert derivative == pytest.approx(0.0 if is_clipped else plain, abs=1e-12)


# (ratio, advantage) -> (weight, clipped) within [0.75, 1.5]
WEIGHTS = {
    (1.6, 2.0): (1.5, True),
    (1.6, -2.0): (1.5, True),
    (0.6, 2.0): (0.75, True),
    (0.6, -2.0): (0.75, True),
    (1.1, -2.0): (1.1, False),
    (1.6, 0.0): (1.5, True),
}


@pytest.mark.parametrize(("token", "expected"), WEIGHTS.items(), ids=map(str, WEIGHTS))
def test_the_clipped_weight_is_blind_to_the_advantages_sign_and_keeps_the_gradient(token, expected):
    (ratio, advantage), (weight, is_clipped) = token, expected
    wanted = (-weight * advantage * math.log(ratio), -weight * advantage, is_clipped)
    assert _alone(clipped_weight, ratio, advantage) == pytest.approx(wanted, abs=1e-12)


def test_the_clipped_weight_keeps_its_gradient_where_log_ratios_are_clamped():
    logprobs = tensor([-900.0, -1.0]).requires_grad_()
    inputs = loss_inputs(logprobs, old=[-1.0, -900.0], advantages=[1.0, 2.0])
    clipped_weight(inputs, clip_low=1.0, clip_high=HIGH).losses.sum().backward()
    # the ratio of the first is exp(-20) and 1 - clip_low is 0
    assert logprobs.grad.tolist() == pytest.approx([-math.exp(-20), -3.0])
