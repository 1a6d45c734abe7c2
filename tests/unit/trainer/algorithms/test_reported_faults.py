"""Faults that users of other systems reported, each with the right value."""

import math

import pytest
import torch

from services.trainer.algorithms.aggregation import (
    SEQUENCE_MEAN,
    TOKEN_MEAN,
    aggregation_count,
    aggregation_weights,
)
from services.trainer.algorithms.importance import level_ratios, masked, unweighted
from services.trainer.algorithms.rejection import without_outliers
from services.trainer.packing import TrainingSequence, pack
from tests.unit.trainer.algorithms.packed import sequences, tensor


def _mean(losses, mask, layout, aggregation=TOKEN_MEAN):
    weights = aggregation_weights(aggregation, mask, layout, divisor_tokens=1.0)
    return (losses * weights).sum() / aggregation_count(aggregation, mask, layout)


@pytest.mark.parametrize("aggregation", [TOKEN_MEAN, SEQUENCE_MEAN])
def test_a_fully_masked_sample_does_not_shrink_the_gradient_of_the_others(aggregation):
    # five samples of one token; with the masked one in the denominator each gradient would be 4/5 of this
    losses = tensor([1.0, 2.0, 3.0, 4.0, 5.0]).requires_grad_()
    mask = torch.tensor([True, True, True, True, False])
    _mean(losses, mask, sequences(1, 1, 1, 1, 1), aggregation).backward()
    assert losses.grad.tolist() == [0.25, 0.25, 0.25, 0.25, 0.0]


def test_a_batch_of_masked_tokens_has_no_count_and_a_sum_of_zero():
    mask, layout = torch.tensor([False, False]), sequences(1, 1)
    for aggregation in (TOKEN_MEAN, SEQUENCE_MEAN):
        assert aggregation_count(aggregation, mask, layout) == 0
        assert aggregation_weights(aggregation, mask, layout, divisor_tokens=1.0).tolist() == [0.0, 0.0]


@pytest.mark.parametrize("response", [(7, 8, 9), (7, 8, 0), (0, 8, 0), (0, 0, 0)], ids=str)
def test_what_counts_is_decided_by_lengths_and_not_by_an_end_token(response):
    """Token 0 is the end token: absent, at the end, in the middle, throughout."""
    sequence = TrainingSequence(
        prompt_token_ids=(5, 0), response_token_ids=response, engine_logprobs=(-1.0,) * 3, advantage=1.0
    )
    batch = pack([sequence, sequence], [0, 1])
    # each position predicts the next: the last prompt token and all but the last response token
    assert batch.loss_mask.tolist() == [False, True, True, True, False] * 2
    assert batch.labels[batch.loss_mask].tolist() == [*response, *response]


def test_rejected_tokens_leave_the_denominator_and_masked_weights_stay_in_it():
    log_ratios = tensor([0.1, -1.5, 0.8, -10.0, 0.3])
    ratios = [math.exp(value) for value in log_ratios.tolist()]
    mask, layout, losses = torch.ones(5, dtype=torch.bool), sequences(5), tensor([1.0] * 5)
    found = level_ratios("token", log_ratios, tensor([0.0] * 5), mask, layout)
    kept = without_outliers(found, mask, lower=1 / 1.5, upper=1.5)
    assert kept.tolist() == [True, False, False, False, True]
    rejected = _mean(losses * torch.where(kept, found, torch.zeros_like(found)), kept, layout)
    assert rejected.item() == pytest.approx((ratios[0] + ratios[4]) / 2)
    assert rejected.item() == pytest.approx(1.23, abs=0.005)
    icepop = masked(found, mask, lower=1 / 1.5, upper=1.5).weights
    assert _mean(losses * icepop, mask, layout).item() == pytest.approx((ratios[0] + ratios[4]) / 5)
    assert _mean(losses * unweighted(kept).weights, kept, layout).item() == 1.0
