import math

import torch

from services.trainer.algorithms.sequence_masking import masked_by_divergence
from tests.unit.trainer.algorithms.packed import sequences, tensor


def _masked(logprobs, advantages, mask=None, *, lengths, max_divergence=0.5):
    num = len(logprobs)
    return masked_by_divergence(
        tensor(logprobs).requires_grad_(),
        tensor([-1.0] * num),
        tensor(advantages),
        torch.tensor(mask or [True] * num),
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
