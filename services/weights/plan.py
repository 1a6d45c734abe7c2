"""The transfer plan: which source rank carries which blocks, and where each engine rank puts them. Pure.

Every engine element is filled by exactly one piece, fetched straight from a rank that owns it. A block that several
engine ranks want is carried once. Data-parallel copies share the load: where all ranks own everything, the busiest
source sends at most the mean plus one piece.
"""

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from services.common.errors import InvalidInputError
from services.weights.boxes import check_box, contains, describe, find_overlap, intersect, map_box, split, subtract
from services.weights.transfer import (
    DTYPE_BYTES,
    Box,
    EngineRankLayout,
    EngineSlice,
    Piece,
    PieceDestination,
    PieceKey,
    SourceRankOffer,
    SourceRankPlan,
    align,
)


@dataclass(frozen=True, kw_only=True)
class PlannedPiece:
    """One piece that an engine rank fetches."""

    piece: Piece
    """The piece; its offset is the offset in the source's buffer."""
    source_rank: int
    """The trainer rank that carries it."""
    destinations: tuple[PieceDestination, ...]
    """Where it goes; never empty."""


@dataclass(frozen=True, kw_only=True)
class EngineRankPlan:
    """Everything one engine rank fetches."""

    rank: int
    """Rank within the engine."""
    pieces: tuple[PlannedPiece, ...]
    """In order of source rank and offset."""


@dataclass(frozen=True, kw_only=True)
class CompletePlan:
    """Who sends which bytes to whom."""

    plan_id: str
    """Digest of offers and layouts: the same members give the same id."""
    ranks: tuple[SourceRankPlan, ...]
    """One entry per offering rank in rank order; a rank that carries nothing has no pieces."""
    engines: Mapping[str, tuple[EngineRankPlan, ...]]
    """What each engine fetches, per engine rank."""


def make_plan(
    offers: Sequence[SourceRankOffer],
    layouts: Mapping[str, Sequence[EngineRankLayout]],
    *,
    bucket_bytes: int,
) -> CompletePlan:
    """The plan for these trainer ranks and engines.

    Args:
        layouts: per engine id, each checked by `check_layouts`.
        bucket_bytes: largest piece; larger blocks are split.

    Raises:
        InvalidInputError: an engine needs elements that no rank offers, or the offers contradict each other; the
            message names the tensor.
    """
    cutter = _Cutter(offers, bucket_bytes)
    wants = {
        engine_id: [(layout.rank, _wanted_pieces(layout, cutter, engine_id)) for layout in ranks]
        for engine_id, ranks in layouts.items()
    }
    loads: dict[PieceKey, int] = {}
    for ranks in wants.values():
        for _, pieces in ranks:
            for key in pieces:
                loads[key] = loads.get(key, 0) + _size_bytes(key)
    carriers = _assign(loads, cutter.owners, [offer.rank for offer in offers])
    sources = _lay_out(carriers, [offer.rank for offer in offers])
    by_key = {PieceKey.of(piece): (source.rank, piece) for source in sources for piece in source.pieces}
    engines = {
        engine_id: tuple(_engine_rank_plan(rank, pieces, by_key) for rank, pieces in ranks)
        for engine_id, ranks in wants.items()
    }
    plan_id = make_plan_id(
        offers_digest=digest_of(offers),
        layout_digests={engine_id: digest_of(ranks) for engine_id, ranks in layouts.items()},
        bucket_bytes=bucket_bytes,
    )
    return CompletePlan(plan_id=plan_id, ranks=sources, engines=engines)


def make_plan_id(*, offers_digest: str, layout_digests: Mapping[str, str], bucket_bytes: int) -> str:
    """The id of the plan for these members."""
    parts = (offers_digest, str(bucket_bytes), *(f"{name}={layout_digests[name]}" for name in sorted(layout_digests)))
    return _hash("|".join(parts))


def digest_of(records: Sequence[SourceRankOffer] | Sequence[EngineRankLayout]) -> str:
    """A digest of offers or of the layouts of one engine that does not depend on the order of ranks."""
    return _hash("|".join(repr(record) for record in sorted(records, key=lambda record: record.rank)))


def check_layouts(ranks: Sequence[EngineRankLayout]) -> None:
    """Returns when the layouts of one engine are sound.

    Raises:
        InvalidInputError: no rank, a repeated rank or parameter, an unknown dtype, a block outside its parameter, two
            slices that fill the same element, or a slice whose source and destination do not match.
    """
    if not ranks:
        raise InvalidInputError("the engine offers 0 ranks; offer the layout of each rank")
    if len({layout.rank for layout in ranks}) != len(ranks):
        raise InvalidInputError(f"engine ranks {[layout.rank for layout in ranks]} repeat; offer each rank once")
    for layout in ranks:
        names = [(tensor.model, tensor.name) for tensor in layout.tensors]
        if len(set(names)) != len(names):
            raise InvalidInputError(f"engine rank {layout.rank} names a parameter twice; offer each once")
        for tensor in layout.tensors:
            what = f"engine rank {layout.rank} {tensor.model} parameter {tensor.name}"
            if tensor.dtype not in DTYPE_BYTES:
                raise InvalidInputError(f"{what} has dtype {tensor.dtype!r}; known are {', '.join(DTYPE_BYTES)}")
            for part in tensor.slices:
                check_box(part.destination, tensor.shape, what=what)
                map_box(part.source, source=part.source, destination=part.destination, what=what)
            overlap = find_overlap(part.destination for part in tensor.slices)
            if overlap:
                raise InvalidInputError(
                    f"{what}: slices {describe(overlap[0])} and {describe(overlap[1])} overlap; fill each element once"
                )


class _Cutter:
    """Cuts blocks of hub tensors at the borders of the shards that hold them, and into buckets."""

    def __init__(self, offers: Sequence[SourceRankOffer], bucket_bytes: int) -> None:
        self._bucket_bytes = bucket_bytes
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._shards = self._group_shards(offers)
        self._cells: dict[str, list[tuple[Box, tuple[int, ...]]]] = {}
        self._cuts: dict[PieceKey, tuple[PieceKey, ...]] = {}
        self.owners: dict[PieceKey, tuple[int, ...]] = {}

    def cut(self, block: PieceKey, *, what: str) -> tuple[PieceKey, ...]:
        """The pieces that tile the block, the same for the same block.

        Raises:
            InvalidInputError: no rank offers some of it.
        """
        if block not in self._cuts:
            self._cuts[block] = tuple(self._cut(block, what))
        return self._cuts[block]

    def _cut(self, block: PieceKey, what: str) -> Iterable[PieceKey]:
        if block.tensor not in self._shapes:
            raise InvalidInputError(f"{what} needs tensor {block.tensor}, which no trainer rank offers; offer it")
        check_box(block.box, self._shapes[block.tensor], what=f"{what} source {block.tensor}")
        missing = block.box.num_elements
        for cell, owners in self._cells_of(block.tensor):
            common = intersect(block.box, cell)
            if common is None:
                continue
            missing -= common.num_elements
            for box in split(common, max_elements=max(1, self._bucket_bytes // DTYPE_BYTES[block.dtype])):
                piece = PieceKey(tensor=block.tensor, box=box, dtype=block.dtype)
                self.owners[piece] = owners
                yield piece
        if missing:
            raise InvalidInputError(
                f"{what} needs {block.tensor}{describe(block.box)}, of which {missing} of {block.box.num_elements} "
                "elements are offered by no trainer rank; offer the missing shards"
            )

    def _cells_of(self, tensor: str) -> list[tuple[Box, tuple[int, ...]]]:
        """Disjoint boxes that cover everything offered of a tensor, each with the ranks that own all of it."""
        if tensor not in self._cells:
            shards = self._shards[tensor]
            cells: list[Box] = []
            for box in shards:
                rest = [box]
                for cell in cells:
                    rest = [part for piece in rest for part in subtract(piece, cell)]
                cells += rest
            self._cells[tensor] = [
                (cell, tuple(sorted({rank for box, ranks in shards.items() if contains(box, cell) for rank in ranks})))
                for cell in cells
            ]
        return self._cells[tensor]

    def _group_shards(self, offers: Sequence[SourceRankOffer]) -> dict[str, dict[Box, list[int]]]:
        if len({offer.rank for offer in offers}) != len(offers):
            raise InvalidInputError(f"trainer ranks {[offer.rank for offer in offers]} repeat; offer each rank once")
        shards: dict[str, dict[Box, list[int]]] = {}
        for offer in offers:
            for shard in offer.shards:
                what = f"trainer rank {offer.rank} shard of {shard.tensor}"
                if self._shapes.setdefault(shard.tensor, shard.tensor_shape) != shard.tensor_shape:
                    raise InvalidInputError(
                        f"{what} says shape {list(shard.tensor_shape)}, another rank "
                        f"{list(self._shapes[shard.tensor])}; offer one shape"
                    )
                check_box(shard.box, shard.tensor_shape, what=what)
                if shard.box.num_elements:
                    shards.setdefault(shard.tensor, {}).setdefault(shard.box, []).append(offer.rank)
        return shards


def _wanted_pieces(layout: EngineRankLayout, cutter: _Cutter, engine_id: str) -> dict[PieceKey, list[PieceDestination]]:
    """The pieces of one engine rank; a piece with several destinations appears once."""
    wanted: dict[PieceKey, list[PieceDestination]] = {}
    for tensor in layout.tensors:
        what = f"engine {engine_id} rank {layout.rank} {tensor.model} parameter {tensor.name}"
        for part in tensor.slices:
            if not part.source.num_elements:
                continue
            for piece in cutter.cut(PieceKey(tensor=part.tensor, box=part.source, dtype=tensor.dtype), what=what):
                box = _destination(piece, part, what)
                destination = PieceDestination(model=tensor.model, name=tensor.name, box=box)
                wanted.setdefault(piece, []).append(destination)
    return wanted


def _destination(piece: PieceKey, part: EngineSlice, what: str) -> Box:
    return map_box(piece.box, source=part.source, destination=part.destination, what=what)


def _assign(
    loads: Mapping[PieceKey, int], owners: Mapping[PieceKey, tuple[int, ...]], ranks: Sequence[int]
) -> dict[PieceKey, int]:
    """The carrier of each piece: pieces with the fewest owners first, then the largest, each to the least loaded owner.

    Owner sets of a parallel layout are nested, which makes this order optimal up to one piece.
    """
    load_bytes = dict.fromkeys(ranks, 0)
    carriers: dict[PieceKey, int] = {}
    for key in sorted(loads, key=lambda key: (len(owners[key]), -loads[key], key.sort_key)):
        carrier = min(owners[key], key=lambda rank: (load_bytes[rank], rank))
        load_bytes[carrier] += loads[key]
        carriers[key] = carrier
    return carriers


def _lay_out(carriers: Mapping[PieceKey, int], ranks: Iterable[int]) -> tuple[SourceRankPlan, ...]:
    """The buffer of each rank: its pieces one after the other, each aligned."""
    keys: dict[int, list[PieceKey]] = {rank: [] for rank in sorted(ranks)}
    for key, rank in carriers.items():
        keys[rank].append(key)
    return tuple(_source_plan(rank, sorted(own, key=lambda key: key.sort_key)) for rank, own in keys.items())


def _source_plan(rank: int, keys: Sequence[PieceKey]) -> SourceRankPlan:
    pieces: list[Piece] = []
    offset = 0
    for key in keys:
        size = _size_bytes(key)
        pieces.append(
            Piece(
                piece_id=f"{key.tensor}{describe(key.box)}:{key.dtype}",
                tensor=key.tensor,
                box=key.box,
                dtype=key.dtype,
                offset_bytes=offset,
                size_bytes=size,
            )
        )
        offset = align(offset + size)
    return SourceRankPlan(rank=rank, pieces=tuple(pieces))


def _engine_rank_plan(
    rank: int,
    wanted: Mapping[PieceKey, Sequence[PieceDestination]],
    by_key: Mapping[PieceKey, tuple[int, Piece]],
) -> EngineRankPlan:
    pieces = [
        PlannedPiece(piece=by_key[key][1], source_rank=by_key[key][0], destinations=tuple(destinations))
        for key, destinations in wanted.items()
    ]
    pieces.sort(key=lambda planned: (planned.source_rank, planned.piece.offset_bytes))
    return EngineRankPlan(rank=rank, pieces=tuple(pieces))


def _size_bytes(key: PieceKey) -> int:
    return math.prod(key.box.sizes) * DTYPE_BYTES[key.dtype]


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:32]
