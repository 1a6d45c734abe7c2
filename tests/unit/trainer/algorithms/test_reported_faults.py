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
from services.trainer.algorithms.importance import level_ratios, masked, unweighted, weight_sums
from services.trainer.algorithms.policy_loss import clipped_surrogate
from services.trainer.algorithms.rejection import without_outliers
from services.trainer.packing import TrainingSequence, pack
from tests.unit.trainer.algorithms.packed import loss_inputs, sequences, tensor, unmasked


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


def test_truncated_tokens_are_in_no_numerator_and_no_denominator():
    # a sample cut after two of its four tokens weighs as one that was two tokens long
    cut = torch.tensor([True, True, False, False, True])
    losses = tensor([1.0, 3.0, math.nan, 100.0, 5.0])
    visible = torch.where(cut, losses, torch.zeros_like(losses))
    assert _mean(visible, cut, sequences(4, 1)).item() == 3.0
    assert _mean(visible, cut, sequences(4, 1), SEQUENCE_MEAN).item() == (2.0 + 5.0) / 2
    short = tensor([1.0, 3.0, 5.0])
    for aggregation in (TOKEN_MEAN, SEQUENCE_MEAN):
        expected = _mean(short, unmasked(3), sequences(2, 1), aggregation).item()
        assert _mean(visible, cut, sequences(4, 1), aggregation).item() == expected


@pytest.mark.parametrize("aggregation", [TOKEN_MEAN, SEQUENCE_MEAN])
def test_an_empty_micro_batch_changes_neither_the_loss_nor_the_gradient_of_the_step(aggregation):
    """What a rank without work computes: one masked token that belongs to no sample."""
    empty = pack([], [])
    logprobs = tensor([-1.0, -0.5]).requires_grad_()
    full = loss_inputs(logprobs, old=[-1.0, -1.0], advantages=[1.0, 2.0], lengths=(1, 1))
    idle = loss_inputs([math.nan], mask=empty.loss_mask.tolist())
    total, count = torch.zeros((), dtype=torch.float64), 0
    for inputs in (full, idle):
        weights = aggregation_weights(aggregation, inputs.mask, inputs.sequences, divisor_tokens=1.0)
        total = total + (clipped_surrogate(inputs, clip_low=0.9, clip_high=0.9).losses * weights).sum()
        count += aggregation_count(aggregation, inputs.mask, inputs.sequences)
    (total / count).backward()
    # ratios 1 and exp(0.5)
    assert (total / count).item() == pytest.approx(-(1.0 + 2 * math.exp(0.5)) / 2)
    assert logprobs.grad.tolist() == pytest.approx([-0.5, -math.exp(0.5)])


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


def test_end_tokens_do_not_stop_or_start_what_counts_in_packed_company():
    """Lengths 3, 0 and 2, with and without an end token: as many labels count as there are response tokens."""
    responses = [(0, 0, 9), (), (4, 6)]
    batch = pack(
        [
            TrainingSequence(
                prompt_token_ids=(5, 0, 5),
                response_token_ids=response,
                engine_logprobs=(-1.0,) * len(response),
                advantage=float(index),
            )
            for index, response in enumerate(responses)
        ],
        [0, 1, 2],
    )
    assert batch.cu_seqlens.tolist() == [0, 6, 9, 14]
    assert batch.sequences.counts(batch.loss_mask).tolist() == [3.0, 0.0, 2.0]
    assert aggregation_count(TOKEN_MEAN, batch.loss_mask, batch.sequences) == 5
    assert aggregation_count(SEQUENCE_MEAN, batch.loss_mask, batch.sequences) == 2
    assert batch.advantages[batch.loss_mask].tolist() == [0.0, 0.0, 0.0, 2.0, 2.0]


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


def test_rejected_tokens_have_no_gradient_and_those_of_weight_zero_dilute_the_others():
    log_ratios = tensor([0.1, -1.5, 0.8, -10.0, 0.3])
    kept = torch.tensor([True, False, False, False, True])
    gradients = {}
    for name, mask in {"rejected": kept, "masked weight": unmasked(5)}.items():
        losses = tensor([1.0] * 5).requires_grad_()
        found = level_ratios("token", log_ratios, tensor([0.0] * 5), mask, sequences(5))
        _mean(losses * masked(found, mask, lower=1 / 1.5, upper=1.5).weights, mask, sequences(5)).backward()
        gradients[name] = losses.grad.tolist()
    first, last = math.exp(0.1), math.exp(0.3)
    assert gradients["rejected"] == pytest.approx([first / 2, 0.0, 0.0, 0.0, last / 2])
    assert gradients["masked weight"] == pytest.approx([first / 5, 0.0, 0.0, 0.0, last / 5])
    assert sum(gradients["rejected"]) == pytest.approx(1.23, abs=0.005)
    assert sum(gradients["masked weight"]) == pytest.approx(0.49, abs=0.005)


def test_the_mean_of_importance_weights_leaves_rejected_tokens_out():
    kept = torch.tensor([True, False, True])
    # a mean over all three would be 1
    assert weight_sums("token", tensor([1.0, math.inf, 2.0]), kept, sequences(3)) == (3.0, 2.0)
