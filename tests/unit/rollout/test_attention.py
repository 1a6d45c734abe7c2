"""The attention kernels against one request and one query at a time in double precision."""

import math

import pytest
import torch
from torch import Tensor

from services.rollout.sglang_cpu.kernels import attention

NUM_HEADS, NUM_KV_HEADS, HEAD_SIZE = 4, 2, 8


class Cache:
    """Random requests over a paged cache whose unused slots hold NaN."""

    def __init__(self, lengths: list[int], seed: int, num_slots: int = 200) -> None:
        self.generator = torch.Generator().manual_seed(seed)
        self.lengths = torch.tensor(lengths)
        slots = torch.randperm(num_slots, generator=self.generator)
        self.table = torch.full((len(lengths) + 2, max(lengths) + 3), int(slots[-1]), dtype=torch.int32)
        self.rows = torch.randperm(len(lengths) + 2, generator=self.generator)[: len(lengths)]
        self.keys = torch.full((num_slots, NUM_KV_HEADS, HEAD_SIZE), math.nan)
        self.values = self.keys.clone()
        used = 0
        for row, length in zip(self.rows, lengths, strict=True):
            own = slots[used : used + length]
            self.table[row, :length] = own.int()
            self.keys[own] = self.normal(length, NUM_KV_HEADS, HEAD_SIZE)
            self.values[own] = self.normal(length, NUM_KV_HEADS, HEAD_SIZE)
            used += length

    def normal(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self.generator)

    def reference(self, request: int, query: Tensor, seen: list[int]) -> Tensor:
        """[H, D] attention of one query [H, D] over the positions seen."""
        slots = self.table[self.rows[request]].long()[seen]
        result = torch.empty(NUM_HEADS, HEAD_SIZE, dtype=torch.double)
        for head in range(NUM_HEADS):
            keys = self.keys[slots, head // 2].double()
            weights = (keys @ query[head].double() / math.sqrt(HEAD_SIZE)).softmax(0)
            result[head] = weights @ self.values[slots, head // 2].double()
        return result.float()

    def extend(self, queries: Tensor, extends: list[int], tree_mask: Tensor | None = None) -> Tensor:
        output = torch.empty_like(queries)
        starts = torch.tensor([sum(extends[:i]) for i in range(len(extends))])
        attention.extend_attention(
            queries, None, None, output, self.keys, self.values, 1.0, 1.0, self.table, self.rows, self.lengths,
            torch.tensor(extends), starts, max(extends), 1 / math.sqrt(HEAD_SIZE), 0.0, False, 0, None, None, tree_mask,
        )  # fmt: skip
        return output


def test_decode_stores_the_token_and_attends_over_its_own_sequence() -> None:
    cache = Cache([5, 1, 17], seed=0)
    query, key, value = (cache.normal(3, heads, HEAD_SIZE) for heads in (NUM_HEADS, NUM_KV_HEADS, NUM_KV_HEADS))
    slots = cache.table[cache.rows, cache.lengths - 1].long()
    output = torch.empty_like(query)
    attention.decode_attention(
        query, cache.keys, cache.values, 1.0, 1.0, output, key, value, slots, torch.empty(0), cache.table, cache.rows,
        cache.lengths, 1 / math.sqrt(HEAD_SIZE), 0.0, False, 0,
    )  # fmt: skip
    assert torch.equal(cache.keys[slots], key)
    for request, length in enumerate([5, 1, 17]):
        torch.testing.assert_close(output[request], cache.reference(request, query[request], list(range(length))))


def test_extend_sees_the_past_and_itself() -> None:
    lengths, extends = [9, 30, 4, 2], [3, 30, 0, 2]
    cache = Cache(lengths, seed=1)
    queries = cache.normal(sum(extends), NUM_HEADS, HEAD_SIZE)
    output = cache.extend(queries, extends)
    row = 0
    for request, (length, extend) in enumerate(zip(lengths, extends, strict=True)):
        for position in range(length - extend, length):
            expected = cache.reference(request, queries[row], list(range(position + 1)))
            torch.testing.assert_close(output[row], expected)
            row += 1


def test_long_prompts_are_attended_in_several_batches() -> None:
    # 2 requests x 1,500 x 1,500 x 4 heads = 18 million scores, more than one batch may have.
    extends = [1400, 1500]
    assert 2 * 1500 * 1500 * NUM_HEADS > attention.MAX_PADDED_SCORES
    cache = Cache(extends, seed=4, num_slots=3000)
    queries = cache.normal(sum(extends), NUM_HEADS, HEAD_SIZE)
    output = cache.extend(queries, extends)
    for request, position in ((0, 0), (0, 1399), (1, 0), (1, 1499)):
        row = request * 1400 + position
        expected = cache.reference(request, queries[row], list(range(position + 1)))
        torch.testing.assert_close(output[row], expected)


@pytest.mark.parametrize("is_tree_only", [True, False])
def test_tree_tokens_see_the_prefix_and_their_ancestors(is_tree_only: bool) -> None:
    # A root with two children; the third node is a child of the second.
    sees = torch.tensor([[1, 0, 0, 0], [1, 1, 0, 0], [1, 0, 1, 0], [1, 1, 0, 1]], dtype=torch.bool)
    lengths = [6, 11]
    masks = [sees if is_tree_only else torch.cat((torch.ones(4, n - 4, dtype=torch.bool), sees), 1) for n in lengths]
    cache = Cache(lengths, seed=2)
    queries = cache.normal(8, NUM_HEADS, HEAD_SIZE)
    output = cache.extend(queries, [4, 4], torch.cat([mask.reshape(-1) for mask in masks]))
    for request, length in enumerate(lengths):
        for node in range(4):
            seen = list(range(length - 4)) + [length - 4 + other for other in range(4) if sees[node, other]]
            expected = cache.reference(request, queries[4 * request + node], seen)
            torch.testing.assert_close(output[4 * request + node], expected)


def test_what_the_kernels_do_not_know_is_refused() -> None:
    cache = Cache([2], seed=3)
    query = cache.normal(1, NUM_HEADS, HEAD_SIZE)
    with pytest.raises(NotImplementedError, match="window 4"):
        attention.decode_attention(
            query, cache.keys, cache.values, 1.0, 1.0, torch.empty_like(query), None, None, torch.zeros(1),
            torch.empty(0), cache.table, cache.rows, cache.lengths, 1.0, 0.0, False, 4,
        )  # fmt: skip
