import math

import torch

from services.trainer.algorithms.aggregation import token_count, token_sum


def test_sum_and_count_leave_masked_tokens_out():
    values, mask = torch.tensor([1.0, math.nan, 2.5]), torch.tensor([True, False, True])
    assert token_sum(values, mask).item() == 3.5
    assert token_count(mask) == 2


def test_everything_masked_is_zero_with_a_gradient_of_zeros():
    values, mask = torch.tensor([math.nan, 1.0], requires_grad=True), torch.tensor([False, False])
    total = token_sum(values, mask)
    total.backward()
    assert total.item() == 0.0
    assert token_count(mask) == 0
    assert values.grad.tolist() == [0.0, 0.0]
