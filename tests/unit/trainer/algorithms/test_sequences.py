import math

import pytest
import torch

from services.trainer.algorithms.sequences import Sequences
from tests.unit.trainer.algorithms.packed import random_inputs, sequences, tensor, unmasked


def test_sums_counts_and_means_leave_masked_tokens_out():
    layout = sequences(3, 1, 0, 2)
    values = tensor([1.0, 3.0, math.nan, 10.0, math.inf, math.nan])
    mask = torch.tensor([True, True, False, True, False, False])
    assert layout.sums(values, mask).tolist() == [4.0, 10.0, 0.0, 0.0]
    assert layout.counts(mask).tolist() == [2.0, 1.0, 0.0, 0.0]
    assert layout.means(values, mask).tolist() == [2.0, 10.0, 0.0, 0.0]


def test_every_token_gets_the_value_of_its_sequence():
    assert sequences(2, 0, 3).spread(tensor([5.0, 6.0, 7.0])).tolist() == [5.0, 5.0, 7.0, 7.0, 7.0]


def test_without_sequences_there_is_nothing():
    layout = Sequences(cu_seqlens=torch.tensor([0]))
    assert layout.sums(tensor([]), torch.tensor([], dtype=torch.bool)).tolist() == []
    assert layout.spread(tensor([])).tolist() == []


def test_gradients_go_to_unmasked_tokens_only():
    values = tensor([1.0, math.nan, 2.0, 4.0]).requires_grad_()
    mask = torch.tensor([True, False, True, True])
    layout = sequences(2, 2)
    # spread the means: each of the two tokens of a sequence carries it
    layout.spread(layout.means(values, mask)).sum().backward()
    assert values.grad.tolist() == [2.0, 0.0, 1.0, 1.0]


def test_gradcheck():
    mask = torch.tensor([True, True, False, True, True])
    values = torch.randn(5, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    layout = sequences(3, 2)
    assert torch.autograd.gradcheck(lambda v: layout.spread(layout.means(v.exp(), mask)), values)


@pytest.mark.parametrize("cut", [0, 1, 2])
def test_sums_of_slices_are_completed(cut):
    values, mask = tensor([1.0, 2.0, 3.0, 4.0]), torch.tensor([True, False, True, True])
    # two sequences of two tokens; the first slice has the first `cut` tokens of each
    first = [0, 1][:cut] + [2, 3][:cut]
    other = [index for index in range(4) if index not in first]
    elsewhere = sequences(2 - cut, 2 - cut).sums(values[other], mask[other])
    here = Sequences(cu_seqlens=torch.tensor([0, cut, 2 * cut]), sum_over_slices=lambda sums: sums + elsewhere)
    assert here.sums(values[first], mask[first]).tolist() == [1.0, 7.0]


def test_counts_and_means_are_completed_by_the_other_slices():
    # this slice sees the values 1 and 3 of a sequence whose other slice has 8 and a masked token
    elsewhere = {"values": tensor([8.0]), "counts": torch.tensor([1.0])}

    def complete(sums):
        return sums + elsewhere["counts" if sums.dtype == torch.float32 else "values"]

    here = Sequences(cu_seqlens=torch.tensor([0, 2]), sum_over_slices=complete)
    assert here.counts(unmasked(2)).tolist() == [3.0]
    assert here.means(tensor([1.0, 3.0]), unmasked(2)).tolist() == [4.0]


def test_sums_keep_the_type_of_the_values_and_counts_are_single_precision():
    layout = sequences(1, 1)
    for dtype in (torch.float32, torch.float64):
        values = torch.ones(2, dtype=dtype)
        assert layout.sums(values, unmasked(2)).dtype == layout.means(values, unmasked(2)).dtype == dtype
    assert layout.counts(unmasked(2)).dtype == torch.float32


def test_counts_of_long_sequences_are_exact():
    num = 1_000_003
    assert sequences(num, 5).counts(unmasked(num + 5)).tolist() == [num, 5.0]


def test_gradient_of_spread_is_the_sum_over_the_sequence():
    values = tensor([1.0, 2.0, 3.0]).requires_grad_()
    (sequences(2, 0, 3).spread(values) * tensor([1.0, 10.0, 100.0, 1000.0, 10000.0])).sum().backward()
    assert values.grad.tolist() == [11.0, 0.0, 11100.0]


def test_sums_agree_with_a_loop_whatever_is_masked():
    for seed in range(5):
        inputs = random_inputs((4, 0, 1, 6, 3), seed=seed)
        expected, start = [], 0
        for length in (4, 0, 1, 6, 3):
            places = [place for place in range(start, start + length) if inputs.mask[place]]
            expected.append(sum(inputs.logprobs[place].item() for place in places))
            start += length
        assert inputs.sequences.sums(inputs.logprobs, inputs.mask).tolist() == pytest.approx(expected)
