import math

import torch

from services.trainer.algorithms.log_ratio import masked_log_ratio
from tests.unit.trainer.algorithms.packed import tensor


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
