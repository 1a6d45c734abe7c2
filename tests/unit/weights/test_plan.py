"""The plan covers every engine element once, carries each block once, and shares the load."""

import itertools
import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.common.errors import InvalidInputError
from services.weights.plan import CompletePlan, check_layouts, make_plan
from services.weights.transfer import (
    Box,
    EngineRankLayout,
    EngineSlice,
    EngineTensor,
    PieceKey,
    SourceRankOffer,
    SourceShard,
)
from tests.unit.weights import tiny_world as world
from tests.unit.weights.tiny_world import box, full

BIG = 1 << 30


def sent_bytes(plan: CompletePlan) -> Counter[int]:
    """Bytes each source sends, over all engine ranks."""
    sent = Counter({source.rank: 0 for source in plan.ranks})
    for ranks in plan.engines.values():
        for rank in ranks:
            for planned in rank.pieces:
                sent[planned.source_rank] += planned.piece.size_bytes
    return sent


def check_plan(plan: CompletePlan, layouts: dict[str, list[EngineRankLayout]], offers: list[SourceRankOffer]) -> None:
    """Every filled element exactly once; every piece within a shard of its carrier; buffers without overlap."""
    shards = {offer.rank: offer.shards for offer in offers}
    for source in plan.ranks:
        end = 0
        for piece in source.pieces:
            assert piece.offset_bytes % 64 == 0
            assert piece.offset_bytes >= end
            end = piece.offset_bytes + piece.size_bytes
            assert any(
                shard.tensor == piece.tensor and np.all(_mask(shard)[piece.box.slices]) for shard in shards[source.rank]
            )
    for engine_id, ranks in layouts.items():
        for layout, planned_rank in zip(ranks, plan.engines[engine_id], strict=True):
            counts = {(t.model, t.name): np.zeros(t.shape, dtype=int) for t in layout.tensors}
            for planned in planned_rank.pieces:
                for destination in planned.destinations:
                    counts[destination.model, destination.name][destination.box.slices] += 1
            for tensor in layout.tensors:
                wanted = np.zeros(tensor.shape, dtype=int)
                for piece in tensor.slices:
                    wanted[piece.destination.slices] = 1
                np.testing.assert_array_equal(counts[tensor.model, tensor.name], wanted)


def _mask(shard: SourceShard) -> np.ndarray:
    mask = np.zeros(shard.tensor_shape, dtype=bool)
    mask[shard.box.slices] = True
    return mask


@pytest.mark.parametrize(("tp", "dp", "engine_tp"), [(1, 1, 1), (2, 1, 1), (1, 1, 2), (4, 1, 2), (2, 3, 4), (4, 2, 1)])
@pytest.mark.parametrize("bucket_bytes", [40, 200, BIG])
def test_fused_padded_and_shared_parameters_are_covered_once(tp: int, dp: int, engine_tp: int, bucket_bytes: int):
    offers = world.offers(tp=tp, dp=dp)
    layouts = {"rollout-0": world.layouts(engine_tp), "rollout-1": world.layouts(1, "bfloat16")}
    plan = make_plan(offers, layouts, bucket_bytes=bucket_bytes)
    check_plan(plan, layouts, offers)
    keys = [PieceKey.of(piece) for source in plan.ranks for piece in source.pieces]
    assert len(keys) == len(set(keys))
    assert all(piece.size_bytes <= bucket_bytes for source in plan.ranks for piece in source.pieces)


cuts = st.lists(st.integers(1, 11), max_size=3, unique=True).map(lambda inner: [0, *sorted(inner), 12])


@settings(max_examples=60, deadline=None)
@given(
    source_cuts=st.tuples(cuts, cuts),
    engine_cuts=cuts,
    dp=st.integers(1, 3),
    bucket_elements=st.integers(1, 200),
    with_overlap=st.booleans(),
)
def test_any_grid_of_shards_covers_any_rows_of_an_engine(source_cuts, engine_cuts, dp, bucket_elements, with_overlap):
    shape = (12, 12)
    rows, columns = source_cuts
    blocks = [
        box(rows_span, columns_span)
        for rows_span in itertools.pairwise(rows)
        for columns_span in itertools.pairwise(columns)
    ]
    if with_overlap:
        blocks.append(box((1, 7), (2, 9)))
    offers = [
        SourceRankOffer(
            rank=copy * len(blocks) + index, shards=(SourceShard(tensor="w", tensor_shape=shape, box=block),)
        )
        for copy in range(dp)
        for index, block in enumerate(blocks)
    ]
    ranks = [
        EngineRankLayout(
            rank=index,
            tensors=(
                EngineTensor(
                    model="target",
                    name="p",
                    shape=(3, end - start, 12),
                    dtype="float32",
                    slices=(
                        EngineSlice(
                            tensor="w",
                            source=box((start, end), (0, 12)),
                            destination=box((1, 2), (0, end - start), (0, 12)),
                        ),
                    ),
                ),
            ),
        )
        for index, (start, end) in enumerate(itertools.pairwise(engine_cuts))
    ]
    plan = make_plan(offers, {"e": ranks}, bucket_bytes=4 * bucket_elements)
    check_plan(plan, {"e": ranks}, offers)
    assert sum(sent_bytes(plan).values()) == 12 * 12 * 4


def replicated(num_sources: int, num_tensors: int, shape: tuple[int, int]) -> list[SourceRankOffer]:
    """Every rank owns all of t0, t1, ..."""
    shards = tuple(SourceShard(tensor=f"t{i}", tensor_shape=shape, box=full(shape)) for i in range(num_tensors))
    return [SourceRankOffer(rank=rank, shards=shards) for rank in range(num_sources)]


def row_sharded(engine_tp: int, num_tensors: int, shape: tuple[int, int]) -> list[EngineRankLayout]:
    """Each engine rank wants its equal rows of t0, t1, ..."""
    rows = shape[0] // engine_tp
    return [
        EngineRankLayout(
            rank=rank,
            tensors=tuple(
                whole_tensor(f"t{i}", box((rank * rows, (rank + 1) * rows), (0, shape[1]))) for i in range(num_tensors)
            ),
        )
        for rank in range(engine_tp)
    ]


def whole_tensor(name: str, source: Box) -> EngineTensor:
    """A parameter that is exactly one block of the hub tensor of its name."""
    part = EngineSlice(tensor=name, source=source, destination=full(source.sizes))
    return EngineTensor(model="target", name=name, shape=source.sizes, dtype="float32", slices=(part,))


@pytest.mark.parametrize(
    ("num_sources", "num_engines", "engine_tp", "peer_busiest"),
    # Sources, engines, ranks of an engine, and the busiest source of a peer's heuristic in rank-sized loads.
    [
        (4, 2, 3, 2),
        (8, 4, 8, 4),
        (16, 2, 64, 8),
        (16, 8, 8, 4),
        (8, 4, 6, 4),
        (6, 4, 4, 4),
        (12, 4, 8, 4),
        (3, 4, 8, 12),
    ],
)
def test_busiest_source_sends_the_mean_rounded_up_to_a_piece(
    num_sources: int, num_engines: int, engine_tp: int, peer_busiest: int
):
    # 192 rows, so that the ranks of every engine of the table get equal rows.
    num_tensors, shape = 16, (192, 4)
    layouts = row_sharded(engine_tp, num_tensors, shape)
    plan = make_plan(
        replicated(num_sources, num_tensors, shape),
        {f"e{i}": layouts for i in range(num_engines)},
        bucket_bytes=BIG,
    )
    sent = sent_bytes(plan)
    piece_bytes = num_engines * (192 // engine_tp) * 4 * 4
    num_pieces = num_tensors * engine_tp
    assert sum(sent.values()) == num_pieces * piece_bytes
    assert max(sent.values()) == math.ceil(num_pieces / num_sources) * piece_bytes
    assert max(sent.values()) <= peer_busiest * num_tensors * piece_bytes / num_engines


def test_uneven_row_of_the_table_is_level_where_the_peer_has_two_to_four():
    # 8 sources, 4 engines of 6 ranks: 48 distinct blocks of 16 x 2 floats, each to 4 engines, are 6 blocks a source.
    layouts = row_sharded(6, 8, (96, 2))
    plan = make_plan(replicated(8, 8, (96, 2)), {f"e{i}": layouts for i in range(4)}, bucket_bytes=BIG)
    assert sent_bytes(plan) == Counter(dict.fromkeys(range(8), 6 * 128 * 4))


def test_ranks_with_experts_of_their_own_carry_less_of_what_all_ranks_own():
    # Ranks 0 and 1 own an expert each (128 bytes), all four own the dense tensor (256 bytes): 128 bytes a rank.
    dense = SourceShard(tensor="dense", tensor_shape=(16, 4), box=full((16, 4)))
    experts = [SourceShard(tensor=f"x{rank}", tensor_shape=(8, 4), box=full((8, 4))) for rank in range(2)]
    offers = [SourceRankOffer(rank=rank, shards=(dense, *experts[rank : rank + 1])) for rank in range(4)]
    tensors = [whole_tensor("dense", full((16, 4)))] + [whole_tensor(f"x{rank}", full((8, 4))) for rank in range(2)]
    layouts = {"e": [EngineRankLayout(rank=0, tensors=tuple(tensors))]}
    plan = make_plan(offers, layouts, bucket_bytes=128)
    assert sent_bytes(plan) == Counter({0: 128, 1: 128, 2: 128, 3: 128})


def test_missing_elements_are_named():
    offers = world.offers(tp=2)[:1]
    missing = r"engine e rank 0 target parameter embed_tokens needs embed\[0:20, 0:8\], of which 80 of 160 elements"
    with pytest.raises(InvalidInputError, match=missing):
        make_plan(offers, {"e": world.layouts()}, bucket_bytes=BIG)
    without = [SourceRankOffer(rank=0, shards=tuple(s for s in world.offers()[0].shards if s.tensor != "norm"))]
    with pytest.raises(InvalidInputError, match="parameter norm needs tensor norm, which no trainer rank offers"):
        make_plan(without, {"e": world.layouts()}, bucket_bytes=BIG)


def test_contradicting_and_repeated_offers_are_refused():
    shard = SourceShard(tensor="w", tensor_shape=(4,), box=box((0, 4)))
    other = SourceShard(tensor="w", tensor_shape=(8,), box=box((0, 4)))
    with pytest.raises(InvalidInputError, match=r"rank 1 shard of w says shape \[8\], another rank \[4\]"):
        make_plan(
            [SourceRankOffer(rank=0, shards=(shard,)), SourceRankOffer(rank=1, shards=(other,))], {}, bucket_bytes=BIG
        )
    with pytest.raises(InvalidInputError, match="repeat"):
        make_plan([SourceRankOffer(rank=0, shards=(shard,))] * 2, {}, bucket_bytes=BIG)


def test_plan_id_depends_on_members_and_not_on_their_order():
    layouts = {"a": world.layouts(2), "b": world.layouts(1)}
    first = make_plan(world.offers(dp=2), layouts, bucket_bytes=BIG)
    again = make_plan(world.offers(dp=2)[::-1], dict(reversed(layouts.items())), bucket_bytes=BIG)
    assert again.plan_id == first.plan_id
    assert again.ranks == first.ranks
    others = [
        make_plan(world.offers(dp=1), layouts, bucket_bytes=BIG),
        make_plan(world.offers(dp=2), {"a": world.layouts(2)}, bucket_bytes=BIG),
        make_plan(world.offers(dp=2), layouts, bucket_bytes=128),
    ]
    assert len({first.plan_id, *(plan.plan_id for plan in others)}) == 4


def test_rank_without_work_has_an_empty_plan():
    shard = SourceShard(tensor="w", tensor_shape=(4,), box=box((0, 4)))
    offers = [SourceRankOffer(rank=rank, shards=(shard,)) for rank in range(3)]
    layout = EngineRankLayout(rank=0, tensors=(whole_tensor("w", box((0, 4))),))
    plan = make_plan(offers, {"e": [layout]}, bucket_bytes=BIG)
    assert [len(source.pieces) for source in plan.ranks] == [1, 0, 0]


@pytest.mark.parametrize(
    ("slices", "dtype", "message"),
    [
        ([((0, 4), (0, 4)), ((0, 2), (2, 4))], "float32", r"slices \[0:4\] and \[2:4\] overlap"),
        ([((0, 4), (5, 9))], "float32", r"box \[5:9\] is not within shape \[8\]"),
        ([((0, 4), (0, 3))], "float32", "differ in more than dimensions of one"),
        ([((0, 4), (0, 4))], "int4", "dtype 'int4'; known are float32"),
    ],
)
def test_unsound_layouts_are_refused(slices, dtype: str, message: str):
    parts = tuple(EngineSlice(tensor="w", source=box(s), destination=box(d)) for s, d in slices)
    tensor = EngineTensor(model="target", name="p", shape=(8,), dtype=dtype, slices=parts)
    with pytest.raises(InvalidInputError, match=message):
        check_layouts([EngineRankLayout(rank=0, tensors=(tensor,))])


def test_layouts_with_repeated_names_or_ranks_or_none_are_refused():
    tensor = EngineTensor(model="target", name="p", shape=(8,), dtype="float32", slices=())
    for ranks in ([], [EngineRankLayout(rank=0, tensors=())] * 2, [EngineRankLayout(rank=0, tensors=(tensor, tensor))]):
        with pytest.raises(InvalidInputError):
            check_layouts(ranks)
    assert Box(starts=(), sizes=()).num_elements == 1
