"""Losses whose gradient isn't the derivative of their value, against their definitions with the stops written out.

What a definition stops is a Python number here, so that no gradient can pass through it.
"""

import math

import pytest
import torch

from services.trainer.algorithms.policy_loss import clipped_weight, sequence_surrogate, sequence_token_surrogate
from tests.unit.trainer.algorithms.packed import by_sequence, random_inputs

LENGTHS = (5, 1, 0, 7, 4)
LOW, HIGH = 0.15, 0.2


def _places(inputs):
    """The unmasked places of each sequence."""
    everything = torch.arange(len(inputs.mask), dtype=torch.float64)
    return [[int(place) for place in row] for row in by_sequence(everything, inputs.mask, inputs.sequences)]


def _sequence_token_definition(inputs):
    """Sum over tokens of -min(s A, clip(s) A), s = sg[sequence ratio] p / sg[p] (arXiv 2507.18071, eq. 13-14)."""
    total = torch.zeros((), dtype=torch.float64)
    for places in _places(inputs):
        logs = [inputs.logprobs[place].item() - inputs.old_logprobs[place].item() for place in places]
        for place in places:
            sequence_ratio = math.exp(sum(logs) / len(logs))
            probability = inputs.logprobs[place].exp()
            ratio = sequence_ratio * probability / probability.item()
            advantage = inputs.advantages[place].item()
            total = total - torch.minimum(ratio * advantage, ratio.clamp(1 - LOW, 1 + HIGH) * advantage)
    return total


def _sequence_definition(inputs):
    """Sum over sequences of -n min(s A, clip(s) A) with s = (p(y) / p_old(y))^(1/n) (arXiv 2507.18071, eq. 5-7)."""
    total = torch.zeros((), dtype=torch.float64)
    for places in _places(inputs):
        if not places:
            continue
        likelihood = torch.stack([inputs.logprobs[place].exp() for place in places]).prod()
        old = math.prod(math.exp(inputs.old_logprobs[place].item()) for place in places)
        ratio = (likelihood / old) ** (1 / len(places))
        advantage = inputs.advantages[places[0]].item()
        bound = ratio.clamp(1 - LOW, 1 + HIGH)
        total = total - len(places) * torch.minimum(ratio * advantage, bound * advantage)
    return total


def _weight_definition(inputs):
    """Sum over tokens of -sg[clip(r)] A log p (arXiv 2506.13585, eq. 4-5)."""
    total = torch.zeros((), dtype=torch.float64)
    for places in _places(inputs):
        for place in places:
            ratio = math.exp(inputs.logprobs[place].item() - inputs.old_logprobs[place].item())
            weight = min(max(ratio, 1 - LOW), 1 + HIGH)
            total = total - weight * inputs.advantages[place].item() * inputs.logprobs[place]
    return total


def _value_and_gradient(total, inputs):
    (gradient,) = torch.autograd.grad(total, inputs.logprobs)
    return total.item(), gradient.tolist()


CASES = {
    "sequence_surrogate": (sequence_surrogate, _sequence_definition, False),
    "sequence_token_surrogate": (sequence_token_surrogate, _sequence_token_definition, False),
    "sequence_token_surrogate, advantages by token": (sequence_token_surrogate, _sequence_token_definition, True),
    "clipped_weight": (clipped_weight, _weight_definition, False),
    "clipped_weight, advantages by token": (clipped_weight, _weight_definition, True),
}


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_value_and_gradient_are_those_of_the_definition(case, seed):
    loss, definition, by_token = case
    inputs = random_inputs(LENGTHS, seed=seed, by_token=by_token)
    wanted = _value_and_gradient(definition(inputs), inputs)
    found = _value_and_gradient(loss(inputs, clip_low=LOW, clip_high=HIGH).losses.sum(), inputs)
    assert found[0] == pytest.approx(wanted[0])
    assert found[1] == pytest.approx(wanted[1], abs=1e-12)


@pytest.mark.parametrize("seed", range(5))
def test_the_token_variant_is_the_sequence_loss_with_one_advantage_a_sequence_and_not_otherwise(seed):
    same, different = (random_inputs(LENGTHS, seed=seed, by_token=by_token) for by_token in (False, True))
    for inputs, are_equal in ((same, True), (different, False)):
        by_loss = [
            _value_and_gradient(loss(inputs, clip_low=0.9, clip_high=9.0).losses.sum(), inputs)
            for loss in (sequence_surrogate, sequence_token_surrogate)
        ]
        # unclipped, the values agree whatever the advantages
        assert by_loss[0][0] == pytest.approx(by_loss[1][0])
        assert (by_loss[0][1] == pytest.approx(by_loss[1][1], abs=1e-12)) is are_equal
