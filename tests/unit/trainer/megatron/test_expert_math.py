import pytest
import torch
from torch.nn import functional

from services.trainer.megatron.expert_math import grouped_gated_mlp

HIDDEN, INNER = 3, 4


def _weights(num_experts: int, dtype: torch.dtype = torch.float64) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    generator = torch.Generator().manual_seed(1)
    first = [torch.randn(2 * INNER, HIDDEN, generator=generator, dtype=dtype) for _ in range(num_experts)]
    second = [torch.randn(HIDDEN, INNER, generator=generator, dtype=dtype) for _ in range(num_experts)]
    return [w.requires_grad_() for w in first], [w.requires_grad_() for w in second]


def _one_by_one(
    hidden: torch.Tensor,
    probs: torch.Tensor,
    counts: list[int],
    first: list[torch.Tensor],
    second: list[torch.Tensor],
) -> torch.Tensor:
    rows = []
    experts = [expert for expert, count in enumerate(counts) for _ in range(count)]
    for row, prob, expert in zip(hidden, probs, experts, strict=True):
        gate, up = (first[expert] @ row).chunk(2)
        rows.append(second[expert] @ (functional.silu(gate) * up * prob))
    return torch.stack(rows)


@pytest.mark.parametrize("counts", [[2, 1, 3], [0, 6, 0], [0, 0, 6]])
def test_values_and_gradients_are_those_of_single_rows(counts: list[int]) -> None:
    first, second = _weights(3)
    hidden = torch.randn(6, HIDDEN, dtype=torch.float64, requires_grad=True)
    probs = torch.rand(6, dtype=torch.float64, requires_grad=True)
    inputs = [hidden, probs, *first, *second]
    found = grouped_gated_mlp(hidden, probs, counts=counts, first=first, second=second)
    wanted = _one_by_one(hidden, probs, counts, first, second)
    torch.testing.assert_close(found, wanted)
    direction = torch.randn_like(wanted)
    found_gradients = torch.autograd.grad(found, inputs, direction, allow_unused=True)
    wanted_gradients = torch.autograd.grad(wanted, inputs, direction, allow_unused=True)
    for found_gradient, wanted_gradient in zip(found_gradients, wanted_gradients, strict=True):
        # An expert without rows has no gradient either way.
        assert (found_gradient is None) == (wanted_gradient is None)
        if wanted_gradient is not None:
            torch.testing.assert_close(found_gradient, wanted_gradient)


def test_no_rows_give_no_output_and_no_gradient() -> None:
    first, second = _weights(2)
    hidden = torch.zeros(0, HIDDEN, dtype=torch.float64, requires_grad=True)
    output = grouped_gated_mlp(hidden, torch.zeros(0), counts=[0, 0], first=first, second=second)
    output.sum().backward()
    assert output.shape == (0, HIDDEN)
    assert first[0].grad is None


def test_bfloat16_rows_keep_their_type_under_float32_probabilities() -> None:
    first, second = _weights(1, torch.bfloat16)
    hidden = torch.ones(2, HIDDEN, dtype=torch.bfloat16, requires_grad=True)
    probs = torch.ones(2, requires_grad=True)
    output = grouped_gated_mlp(hidden, probs, counts=[2], first=first, second=second)
    output.float().sum().backward()
    assert output.dtype == torch.bfloat16
    assert probs.grad is not None
    assert probs.grad.dtype == torch.float32
    gate, up = (first[0].float() @ torch.ones(HIDDEN)).chunk(2)
    wanted = second[0].float() @ (functional.silu(gate) * up)
    torch.testing.assert_close(output[0].float(), wanted, rtol=0.05, atol=0.05)
