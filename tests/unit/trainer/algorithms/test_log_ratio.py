import math

import torch

from services.trainer.algorithms.log_ratio import masked_log_ratio, sequence_indices, sequence_means


def test_log_ratio_is_a_difference_and_zero_where_masked():
    ratio = masked_log_ratio(
        torch.tensor([-1.0, math.nan, -2.0]),
        torch.tensor([-1.5, 0.0, math.inf]),
        torch.tensor([True, False, False]),
    )
    assert ratio.tolist() == [0.5, 0.0, 0.0]


def test_log_ratio_is_clamped_so_that_exp_is_finite():
    mask = torch.tensor([True, True])
    ratio = masked_log_ratio(torch.tensor([0.0, -500.0]), torch.tensor([-500.0, 0.0]), mask)
    assert ratio.tolist() == [20.0, -20.0]
    assert ratio.exp().isfinite().all()


def test_nan_under_the_mask_leaves_the_gradient_clean():
    logprobs = torch.tensor([-1.0, math.nan], requires_grad=True)
    masked_log_ratio(logprobs, torch.tensor([-1.5, math.nan]), torch.tensor([True, False])).sum().backward()
    assert logprobs.grad.tolist() == [1.0, 0.0]


def test_sequence_means_leave_masked_tokens_out():
    values = torch.tensor([1.0, 3.0, math.nan, 10.0, math.nan])
    mask = torch.tensor([True, True, False, True, False])
    # sequences of 3, 1 and 1 tokens
    means = sequence_means(values, mask, torch.tensor([0, 3, 4, 5], dtype=torch.int32))
    assert means.tolist() == [2.0, 2.0, 2.0, 10.0, 0.0]


def test_every_position_knows_its_sequence():
    assert sequence_indices(torch.tensor([0, 2, 2, 5], dtype=torch.int32)).tolist() == [0, 0, 2, 2, 2]
