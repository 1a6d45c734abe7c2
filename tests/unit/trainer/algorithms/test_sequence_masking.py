import math

import pytest
import torch

from services.trainer.algorithms.sequence_masking import masked_by_divergence
from tests.unit.trainer.algorithms.packed import by_sequence, random_inputs, sequences, tensor, unmasked


def _masked(logprobs, advantages, mask=None, *, lengths, max_divergence=0.5):
    num = len(logprobs)
    return masked_by_divergence(
        tensor(logprobs).requires_grad_(),
        tensor([-1.0] * num),
        tensor(advantages),
        torch.tensor(mask or [True] * num, dtype=torch.bool),
        sequences(*lengths),
        max_divergence=max_divergence,
    ).tolist()


def test_only_negative_samples_that_became_much_less_likely_are_masked():
    # mean falls: 0.6 twice, 0.4, and a rise of 0.6
    logprobs = [-1.0, -2.2, -1.0, -2.2, -1.4, -0.4]
    advantages = [-1.0, -1.0, 1.0, 1.0, -1.0, -1.0]
    assert _masked(logprobs, advantages, lengths=(2, 2, 1, 1)) == [True, True, False, False, False, False]


def test_the_mean_is_over_unmasked_tokens_and_masked_ones_stay_out():
    found = _masked([-1.6, -9.0, math.nan], [-1.0, -1.0, math.nan], [True, False, False], lengths=(3,))
    assert found == [True, False, False]
    assert _masked([-1.4, -9.0], [-1.0, -1.0], [True, False], lengths=(2,)) == [False, False]


def test_the_limit_itself_is_kept():
    assert _masked([-1.5], [-1.0], lengths=(1,)) == [False]


def test_nothing_counted_is_nothing_masked():
    assert _masked([math.nan], [-1.0], [False], lengths=(1,)) == [False]


@pytest.mark.parametrize("seed", range(5))
def test_it_agrees_with_a_loop(seed):
    inputs = random_inputs((4, 1, 0, 6, 3, 2), seed=seed)
    found = masked_by_divergence(
        inputs.logprobs, inputs.old_logprobs, inputs.advantages, inputs.mask, inputs.sequences, max_divergence=0.02
    )
    expected = []
    tables = (
        by_sequence(v.detach(), inputs.mask, inputs.sequences)
        for v in (inputs.logprobs, inputs.old_logprobs, inputs.advantages)
    )
    for logprobs, olds, advantages in zip(*tables, strict=True):
        gone = [old - new for old, new in zip(olds, logprobs, strict=True)]
        expected += [a < 0 and sum(gone) / len(gone) > 0.02 for a in advantages]
    assert found[inputs.mask].tolist() == expected
    assert not found[~inputs.mask].any()


def test_an_advantage_of_zero_is_not_negative():
    assert _masked([-9.0], [0.0], lengths=(1,)) == [False]


def test_with_advantages_by_token_only_the_negative_tokens_are_masked():
    assert _masked([-9.0, -9.0], [1.0, -1.0], lengths=(2,)) == [False, True]


def test_a_vanished_token_counts_as_20_nats_and_a_likelier_one_makes_up_for_it():
    # (20 + 0 + 0) / 3 of a nat; then (20 - 20) / 2
    assert _masked([-800.0, -1.0, -1.0], [-1.0] * 3, lengths=(3,), max_divergence=6.6) == [True] * 3
    assert _masked([-800.0, -1.0, -1.0], [-1.0] * 3, lengths=(3,), max_divergence=6.7) == [False] * 3
    found = masked_by_divergence(
        tensor([-800.0, 0.0]), tensor([-1.0, -800.0]), tensor([-1.0] * 2), unmasked(2), sequences(2), max_divergence=0.1
    )
    assert found.tolist() == [False, False]


def test_without_sequences_nothing_is_masked():
    assert _masked([], [], lengths=()) == []
    assert _masked([], [], lengths=(0, 0)) == []
