import pytest
import torch

from services.trainer.megatron.packed_rows import (
    from_rows,
    next_in_sequence,
    pad_offsets,
    pad_pack,
    row_index,
    to_rows,
)

OFFSETS = torch.tensor([0, 2, 5, 6])


def test_rows_hold_the_positions_of_each_sequence() -> None:
    assert row_index(OFFSETS).tolist() == [[0, 1, -1], [2, 3, 4], [5, -1, -1]]


def test_tokens_go_to_rows_and_back() -> None:
    packed = torch.arange(12.0).reshape(6, 2)
    rows = row_index(OFFSETS)
    padded = to_rows(packed, rows)
    assert padded[:, :, 0].tolist() == [[0.0, 2.0, 0.0], [4.0, 6.0, 8.0], [10.0, 0.0, 0.0]]
    assert torch.equal(from_rows(padded, rows), packed)


def test_equal_sequences_need_no_padding() -> None:
    packed = torch.arange(6.0).reshape(6, 1)
    rows = row_index(torch.tensor([0, 3, 6]))
    assert to_rows(packed, rows)[:, :, 0].tolist() == [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]
    assert torch.equal(from_rows(to_rows(packed, rows), rows), packed)


def test_values_in_the_padding_reach_no_token_and_no_gradient() -> None:
    packed = torch.ones(6, 1, requires_grad=True)
    rows = row_index(OFFSETS)
    padded = torch.where((rows >= 0)[:, :, None], to_rows(packed, rows), float("nan"))
    from_rows(padded, rows).sum().backward()
    assert packed.grad is not None
    assert packed.grad.tolist() == [[1.0]] * 6


@pytest.mark.parametrize(
    ("values", "following"),
    [
        (torch.tensor([1, 2, 3, 4, 5, 6]), [2, 0, 4, 5, 0, 0]),
        (torch.tensor([True, True, False, True, True, True]), [True, False, True, True, False, False]),
    ],
)
def test_the_next_value_never_comes_from_another_sequence(values: torch.Tensor, following: list[int]) -> None:
    assert next_in_sequence(values, OFFSETS).tolist() == following


def test_padding_is_a_sequence_of_its_own() -> None:
    assert pad_offsets(torch.tensor([0, 3]), 4).tolist() == [0, 3, 4]
    assert pad_offsets(torch.tensor([0, 4]), 4).tolist() == [0, 4]
    assert pad_offsets(torch.tensor([0]), 2).tolist() == [0, 2]
    assert pad_pack(torch.tensor([7, 8, 9]), 4).tolist() == [7, 8, 9, 0]
    assert pad_pack(torch.tensor([True]), 2).tolist() == [True, False]
