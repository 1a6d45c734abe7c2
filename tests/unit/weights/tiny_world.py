"""A small model in hub naming, sharded over trainer ranks and over engine ranks, with a slow reference."""

from dataclasses import dataclass

import torch

from services.weights.transfer import (
    Box,
    EngineRankLayout,
    EngineSlice,
    EngineTensor,
    SourceRankOffer,
    SourceShard,
)

NUM_EXPERTS, HIDDEN, INNER, VOCAB = 4, 8, 12, 20
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
# Dimension over which the trainer's tensor parallelism cuts each tensor; None: every rank has all of it.
CUT_DIM = {"embed": 0, "q": 0, "o": 1, "norm": None, "bias": None} | {
    f"experts.{e}.{part}": dim for e in range(NUM_EXPERTS) for part, dim in (("gate", 0), ("up", 0), ("down", 1))
}
SHAPES = {"embed": (VOCAB, HIDDEN), "q": (HIDDEN, HIDDEN), "o": (HIDDEN, HIDDEN), "norm": (HIDDEN,), "bias": (4,)} | {
    f"experts.{e}.{part}": (HIDDEN, INNER) if part == "down" else (INNER, HIDDEN)
    for e in range(NUM_EXPERTS)
    for part in ("gate", "up", "down")
}


@dataclass(frozen=True, kw_only=True)
class Owned:
    """A shard with its values."""

    shard: SourceShard
    tensor: torch.Tensor


def box(*spans: tuple[int, int]) -> Box:
    """A box of (start, stop) spans."""
    return Box(starts=tuple(a for a, _ in spans), sizes=tuple(b - a for a, b in spans))


def full(shape: tuple[int, ...]) -> Box:
    return Box(starts=(0,) * len(shape), sizes=shape)


def part(shape: tuple[int, ...], dim: int | None, index: int, count: int) -> Box:
    """The index-th of count equal parts along a dimension."""
    if dim is None:
        return full(shape)
    size = shape[dim] // count
    return box(*((index * size, (index + 1) * size) if d == dim else (0, n) for d, n in enumerate(shape)))


def hub_tensors(seed: int = 0) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(shape, generator=generator) for name, shape in SHAPES.items()}


def offers(*, tp: int = 1, dp: int = 1) -> list[SourceRankOffer]:
    """Rank d * tp + t owns the t-th part of every tensor."""
    return [
        SourceRankOffer(
            rank=d * tp + t,
            shards=tuple(
                SourceShard(tensor=name, tensor_shape=shape, box=part(shape, CUT_DIM[name], t, tp))
                for name, shape in SHAPES.items()
            ),
        )
        for d in range(dp)
        for t in range(tp)
    ]


def owned(offer: SourceRankOffer, tensors: dict[str, torch.Tensor]) -> list[Owned]:
    return [Owned(shard=shard, tensor=tensors[shard.tensor][shard.box.slices]) for shard in offer.shards]


def layouts(tp: int = 1, dtype: str = "float32") -> list[EngineRankLayout]:
    """Fused and padded as an engine has them: expert index in front, gate rows then up rows, draft sharing embed."""
    return [EngineRankLayout(rank=rank, tensors=tuple(_tensors(rank, tp, dtype))) for rank in range(tp)]


def expected(layout: EngineRankLayout, tensors: dict[str, torch.Tensor]) -> dict[tuple[int, str, str], torch.Tensor]:
    """What the parameters must hold, slice by slice from the whole hub tensors."""
    result = {}
    for tensor in layout.tensors:
        value = torch.zeros(tensor.shape, dtype=DTYPES[tensor.dtype])
        for piece in tensor.slices:
            source = tensors[piece.tensor][piece.source.slices].to(value.dtype)
            value[piece.destination.slices] = source.reshape(piece.destination.sizes)
        result[layout.rank, tensor.model, tensor.name] = value
    return result


def _tensors(rank: int, tp: int, dtype: str) -> list[EngineTensor]:
    inner, rows = INNER // tp, VOCAB // tp
    experts = [
        EngineSlice(
            tensor=f"experts.{e}.{name}",
            source=part((INNER, HIDDEN), 0, rank, tp),
            destination=box((e, e + 1), (first, first + inner), (0, HIDDEN)),
        )
        for e in range(NUM_EXPERTS)
        for name, first in (("gate", 0), ("up", inner))
    ]
    down = [
        EngineSlice(
            tensor=f"experts.{e}.down",
            source=part((HIDDEN, INNER), 1, rank, tp),
            destination=box((e, e + 1), (0, HIDDEN), (0, inner)),
        )
        for e in range(NUM_EXPERTS)
    ]
    embed = EngineSlice(
        tensor="embed", source=part((VOCAB, HIDDEN), 0, rank, tp), destination=box((0, rows), (0, HIDDEN))
    )

    def copy(name: str, dim: int | None) -> EngineSlice:
        source = part(SHAPES[name], dim, rank, tp)
        return EngineSlice(tensor=name, source=source, destination=full(source.sizes))

    return [
        # Four rows of padding that no slice fills.
        _tensor("target", "embed_tokens", (rows + 4, HIDDEN), dtype, [embed]),
        _tensor("draft", "embed_tokens", (rows + 4, HIDDEN), dtype, [embed]),
        _tensor("target", "q_proj", (HIDDEN // tp, HIDDEN), dtype, [copy("q", 0)]),
        _tensor("target", "o_proj", (HIDDEN, HIDDEN // tp), dtype, [copy("o", 1)]),
        _tensor("target", "norm", (HIDDEN,), dtype, [copy("norm", None)]),
        _tensor("target", "gate.bias", (4,), "float32", [copy("bias", None)]),
        _tensor("target", "experts.w13", (NUM_EXPERTS, 2 * inner, HIDDEN), dtype, experts),
        _tensor("draft", "experts.w2", (NUM_EXPERTS, HIDDEN, inner), dtype, down),
    ]


def _tensor(model: str, name: str, shape: tuple[int, ...], dtype: str, slices: list[EngineSlice]) -> EngineTensor:
    return EngineTensor(model=model, name=name, shape=shape, dtype=dtype, slices=tuple(slices))
