import math

import pytest
import torch

from services.trainer.algorithms.log_ratio import masked_log_ratio
from tests.unit.trainer.algorithms.packed import tensor, unmasked


def test_log_ratio_is_a_difference_and_zero_where_masked():
    ratio = masked_log_ratio(
        tensor([-1.0, math.nan, -2.0, -math.inf]),
        tensor([-1.5, 0.0, math.inf, -math.inf]),
        torch.tensor([True, False, False, False]),
    )
    assert ratio.tolist() == [0.5, 0.0, 0.0, 0.0]


def test_log_ratio_is_clamped_so_that_exp_is_finite():
    mask = torch.tensor([True, True])
    ratio = masked_log_ratio(torch.tensor([0.0, -500.0]), torch.tensor([-500.0, 0.0]), mask)
    assert ratio.tolist() == [20.0, -20.0]
    assert ratio.exp().isfinite().all()


def test_nan_under_the_mask_leaves_the_gradient_clean_on_both_sides():
    numerator = tensor([-1.0, math.nan, math.inf]).requires_grad_()
    denominator = tensor([-1.5, math.nan, math.inf]).requires_grad_()
    mask = torch.tensor([True, False, False])
    masked_log_ratio(numerator, denominator, mask).exp().sum().backward()
    assert numerator.grad.tolist() == [math.exp(0.5), 0.0, 0.0]
    assert denominator.grad.tolist() == [-math.exp(0.5), 0.0, 0.0]


def test_the_clamp_takes_the_gradient_of_what_it_cuts_and_of_nothing_else():
    numerator = tensor([-20.5, -19.5, 0.0, 19.5, 20.5]).requires_grad_()
    found = masked_log_ratio(numerator, tensor([0.0] * 5), unmasked(5))
    found.sum().backward()
    assert found.tolist() == [-20.0, -19.5, 0.0, 19.5, 20.0]
    assert numerator.grad.tolist() == [0.0, 1.0, 1.0, 1.0, 0.0]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_every_pair_of_hidden_values_leaves_value_and_gradient_alone(value):
    for other in (math.nan, math.inf, -math.inf, 0.0):
        numerator = tensor([value, -1.0]).requires_grad_()
        denominator = tensor([other, -1.5]).requires_grad_()
        found = masked_log_ratio(numerator, denominator, torch.tensor([False, True]))
        found.sum().backward()
        assert found.tolist() == [0.0, 0.5]
        assert (numerator.grad.tolist(), denominator.grad.tolist()) == ([0.0, 1.0], [0.0, -1.0])


def test_infinite_log_probabilities_that_count_are_clamped():
    found = masked_log_ratio(tensor([-math.inf, 0.0]), tensor([0.0, -math.inf]), unmasked(2))
    assert found.tolist() == [-20.0, 20.0]


def test_an_undefined_one_that_counts_is_not_hidden():
    """Rejecting such a sequence, and counting it, is the screening's part; zero would pass for a fine token."""
    assert masked_log_ratio(tensor([math.nan]), tensor([0.0]), unmasked(1)).isnan().all()


def test_no_token_is_no_ratio():
    assert masked_log_ratio(tensor([]), tensor([]), unmasked(0)).tolist() == []
