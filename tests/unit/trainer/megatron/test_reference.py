"""The exchange of a policy's weights for a reference's."""

import math

import pytest
import torch

from services.trainer.megatron.reference import ReferenceWeights


def bits(tensors: list[torch.Tensor]) -> list[list[int]]:
    return [tensor.detach().view(torch.int16).flatten().tolist() for tensor in tensors]


def weights() -> list[torch.Tensor]:
    """A parameter in bfloat16 and a buffer in float32, both views into a larger buffer as Megatron's are."""
    matrix = torch.nn.Parameter(torch.arange(8.0).bfloat16()[2:].view(2, 3))
    return [matrix, torch.tensor([0.0, 0.5, 1.5])[1:]]


@torch.no_grad()
def move(tensors: list[torch.Tensor]) -> None:
    tensors[0].copy_(torch.tensor([[1e-40, -0.0, math.nan], [math.inf, 3e38, 1.0078125]]))
    tensors[1].copy_(torch.tensor([1e-45, 16777217.0]))


def test_within_the_block_the_values_are_the_kept_ones_and_after_it_the_latest_bit_for_bit() -> None:
    tensors = weights()
    kept, places = bits(tensors), [tensor.data_ptr() for tensor in tensors]
    reference = ReferenceWeights(tensors)
    move(tensors)
    latest = bits(tensors)
    for _ in range(2):
        with reference.in_place():
            assert bits(tensors) == kept
            assert [tensor.data_ptr() for tensor in tensors] == places
        assert bits(tensors) == latest
    assert [tensor.data_ptr() for tensor in tensors] == places


def test_an_error_within_the_block_brings_the_values_back_and_keeps_the_reference() -> None:
    tensors = weights()
    kept = bits(tensors)
    reference = ReferenceWeights(tensors)
    move(tensors)
    latest = bits(tensors)
    with pytest.raises(RuntimeError, match="forward pass"), reference.in_place():
        raise RuntimeError("forward pass")
    assert bits(tensors) == latest
    with reference.in_place():
        assert bits(tensors) == kept


def test_an_exchange_that_stops_half_way_is_taken_back() -> None:
    tensors = weights()
    reference = ReferenceWeights(tensors)
    move(tensors)
    latest = bits(tensors)
    tensors[1].resize_(7)
    with pytest.raises(RuntimeError, match="size"), reference.in_place():
        pass
    assert bits(tensors[:1]) == latest[:1]
