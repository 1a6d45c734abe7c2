"""Pure arithmetic on blocks of tensors: intersection, difference, splitting, and mapping into another block."""

from collections.abc import Iterable, Sequence

from services.common.errors import InvalidInputError
from services.weights.transfer import Box


def check_box(box: Box, shape: Sequence[int], *, what: str) -> None:
    """Returns when the box lies within a tensor of the shape.

    Raises:
        InvalidInputError: it does not.
    """
    ranks_differ = not len(box.starts) == len(box.sizes) == len(shape)
    if ranks_differ or any(
        start < 0 or size < 0 or start + size > length
        for start, size, length in zip(box.starts, box.sizes, shape, strict=True)
    ):
        raise InvalidInputError(f"{what}: box {describe(box)} is not within shape {list(shape)}; correct the layout")


def describe(box: Box) -> str:
    """The box in the notation of an index, such as "[0:4, 8:16]"."""
    spans = (f"{start}:{start + size}" for start, size in zip(box.starts, box.sizes, strict=False))
    return "[" + ", ".join(spans) + "]"


def intersect(left: Box, right: Box) -> Box | None:
    """The common block of two boxes of one tensor; None when they share no element."""
    starts = tuple(map(max, left.starts, right.starts))
    sizes = tuple(
        min(left_start + left_size, right_start + right_size) - start
        for start, left_start, left_size, right_start, right_size in zip(
            starts, left.starts, left.sizes, right.starts, right.sizes, strict=True
        )
    )
    return Box(starts=starts, sizes=sizes) if all(size > 0 for size in sizes) else None


def contains(outer: Box, inner: Box) -> bool:
    """Whether every element of inner is in outer."""
    return all(
        outer_start <= start and start + size <= outer_start + outer_size
        for outer_start, outer_size, start, size in zip(
            outer.starts, outer.sizes, inner.starts, inner.sizes, strict=True
        )
    )


def subtract(box: Box, hole: Box) -> list[Box]:
    """Disjoint boxes that cover exactly the elements of box outside hole."""
    common = intersect(box, hole)
    if common is None:
        return [box]
    parts: list[Box] = []
    starts, sizes = list(box.starts), list(box.sizes)
    for dim in range(len(starts)):
        before = common.starts[dim] - starts[dim]
        after = starts[dim] + sizes[dim] - common.starts[dim] - common.sizes[dim]
        if before:
            parts.append(_with_span(starts, sizes, dim, starts[dim], before))
        if after:
            parts.append(_with_span(starts, sizes, dim, starts[dim] + sizes[dim] - after, after))
        starts[dim], sizes[dim] = common.starts[dim], common.sizes[dim]
    return parts


def split(box: Box, *, max_elements: int) -> list[Box]:
    """Boxes of at most max_elements that tile the box in order, cut along the first dimension longer than one."""
    if box.num_elements <= max_elements:
        return [box]
    dim = next(index for index, size in enumerate(box.sizes) if size > 1)
    row_elements = box.num_elements // box.sizes[dim]
    num_rows = max(1, max_elements // row_elements)
    parts = [
        _with_span(box.starts, box.sizes, dim, box.starts[dim] + row, min(num_rows, box.sizes[dim] - row))
        for row in range(0, box.sizes[dim], num_rows)
    ]
    return [smaller for part in parts for smaller in split(part, max_elements=max_elements)]


def map_box(part: Box, *, source: Box, destination: Box, what: str) -> Box:
    """Where a part of source lies when source fills destination with its elements in the same order.

    Dimensions longer than one are paired in order; dimensions of one are ignored, so [I, H] may fill [1, I, H].

    Raises:
        InvalidInputError: the dimensions longer than one differ, which makes the order ambiguous.
    """
    source_dims = [dim for dim, size in enumerate(source.sizes) if size != 1]
    destination_dims = [dim for dim, size in enumerate(destination.sizes) if size != 1]
    if [source.sizes[dim] for dim in source_dims] != [destination.sizes[dim] for dim in destination_dims]:
        raise InvalidInputError(
            f"{what}: source sizes {list(source.sizes)} and destination sizes {list(destination.sizes)} differ in more "
            "than dimensions of one; split the slice so that they match"
        )
    starts, sizes = list(destination.starts), list(destination.sizes)
    for source_dim, destination_dim in zip(source_dims, destination_dims, strict=True):
        starts[destination_dim] += part.starts[source_dim] - source.starts[source_dim]
        sizes[destination_dim] = part.sizes[source_dim]
    return Box(starts=tuple(starts), sizes=tuple(sizes))


def find_overlap(boxes: Iterable[Box]) -> tuple[Box, Box] | None:
    """Two of the boxes that share an element; None when there are none."""
    active: list[Box] = []
    for box in sorted((box for box in boxes if box.num_elements), key=lambda box: box.starts):
        if not box.starts:
            if active:
                return active[0], box
            active = [box]
            continue
        active = [other for other in active if other.starts[0] + other.sizes[0] > box.starts[0]]
        for other in active:
            if intersect(other, box):
                return other, box
        active.append(box)
    return None


def _with_span(starts: Sequence[int], sizes: Sequence[int], dim: int, start: int, size: int) -> Box:
    return Box(
        starts=(*starts[:dim], start, *starts[dim + 1 :]),
        sizes=(*sizes[:dim], size, *sizes[dim + 1 :]),
    )
