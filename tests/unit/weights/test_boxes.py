"""Arithmetic on boxes, compared with sets of indices."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.common.errors import InvalidInputError
from services.weights.boxes import contains, find_overlap, intersect, map_box, split, subtract
from services.weights.transfer import Box
from tests.unit.weights.tiny_world import box

boxes = st.lists(st.tuples(st.integers(0, 5), st.integers(1, 5)), min_size=2, max_size=2).map(
    lambda spans: Box(starts=tuple(a for a, _ in spans), sizes=tuple(n for _, n in spans))
)


def indices(block: Box) -> set[tuple[int, ...]]:
    ranges = (range(start, start + size) for start, size in zip(block.starts, block.sizes, strict=True))
    return set(itertools.product(*ranges))


@given(boxes, boxes)
def test_intersection_difference_and_containment_agree_with_sets(left: Box, right: Box):
    common = intersect(left, right)
    assert (indices(common) if common else set()) == indices(left) & indices(right)
    rest = subtract(left, right)
    assert sum(part.num_elements for part in rest) == len(indices(left) - indices(right))
    assert set().union(*map(indices, rest)) == indices(left) - indices(right)
    assert contains(left, right) == (indices(right) <= indices(left))
    assert (find_overlap([left, right]) is not None) == bool(indices(left) & indices(right))


@given(boxes, st.integers(1, 30))
def test_split_tiles_the_box_in_order_within_the_limit(block: Box, limit: int):
    parts = split(block, max_elements=limit)
    assert all(part.num_elements <= limit for part in parts)
    assert [index for part in parts for index in sorted(indices(part))] == sorted(indices(block))


def test_rows_of_an_expert_map_behind_its_leading_index():
    # Expert 2's up rows 0:6 lie at rows 6:12 of the fused parameter; rows 2:4 of them therefore at 8:10.
    mapped = map_box(
        box((2, 4), (0, 8)), source=box((0, 6), (0, 8)), destination=box((2, 3), (6, 12), (0, 8)), what="w13"
    )
    assert mapped == box((2, 3), (8, 10), (0, 8))


def test_scalar_maps_onto_any_single_element():
    assert map_box(Box(starts=(), sizes=()), source=Box(starts=(), sizes=()), destination=box((3, 4)), what="s") == box(
        (3, 4)
    )


def test_reshape_is_refused_because_its_order_is_ambiguous():
    with pytest.raises(InvalidInputError, match=r"w: source sizes \[4, 6\] and destination sizes \[2, 2, 6\]"):
        map_box(box((0, 4), (0, 6)), source=box((0, 4), (0, 6)), destination=box((0, 2), (0, 2), (0, 6)), what="w")
