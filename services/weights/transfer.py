"""What is transferred: blocks of tensors in the hub's (HF) naming, as frozen records mirroring transfer.proto."""

from dataclasses import dataclass
from math import prod

DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
"""Bytes of one element of each dtype that may travel."""
ALIGNMENT_BYTES = 64
"""Pieces begin at multiples of a cache line, so that any dtype can view them."""


def align(offset_bytes: int) -> int:
    """The next offset at which a piece may begin."""
    return -(-offset_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


@dataclass(frozen=True, kw_only=True)
class Box:
    """A block of a tensor."""

    starts: tuple[int, ...]
    """First index of each dimension."""
    sizes: tuple[int, ...]
    """Number of indices of each dimension."""

    @property
    def num_elements(self) -> int:
        """Elements in the block; a zero-dimensional block has one."""
        return prod(self.sizes)

    @property
    def slices(self) -> tuple[slice, ...]:
        """The block as an index expression."""
        return tuple(slice(start, start + size) for start, size in zip(self.starts, self.sizes, strict=True))


@dataclass(frozen=True, kw_only=True)
class SourceShard:
    """A block of a hub tensor that a trainer rank owns."""

    tensor: str
    """Hub name, such as "model.norm.weight"."""
    tensor_shape: tuple[int, ...]
    """Shape of the whole tensor."""
    box: Box
    """The block owned."""


@dataclass(frozen=True, kw_only=True)
class SourceRankOffer:
    """Everything one trainer rank owns."""

    rank: int
    """Global rank of the trainer process."""
    shards: tuple[SourceShard, ...]
    """Its shards; data-parallel copies offer the same shards."""


@dataclass(frozen=True, kw_only=True)
class EngineSlice:
    """Which block of a hub tensor fills which block of an engine parameter."""

    tensor: str
    """Hub name."""
    source: Box
    """Block of the hub tensor."""
    destination: Box
    """Block of the engine parameter: as many elements, in the same order."""


@dataclass(frozen=True, kw_only=True)
class EngineTensor:
    """One parameter of an engine rank. Elements that no slice fills are zero."""

    model: str
    """"target" or "draft"."""
    name: str
    """The engine's name of the parameter."""
    shape: tuple[int, ...]
    """Its shape in this rank."""
    dtype: str
    """"float32" or "bfloat16"."""
    slices: tuple[EngineSlice, ...]
    """What fills it."""


@dataclass(frozen=True, kw_only=True)
class EngineRankLayout:
    """All parameters of one engine rank."""

    rank: int
    """Rank within the engine."""
    tensors: tuple[EngineTensor, ...]
    """Its parameters, of target and draft model."""


@dataclass(frozen=True, kw_only=True)
class Piece:
    """A block of a hub tensor in the dtype the engine wants: the unit of copying and of digests."""

    piece_id: str
    """Unique within a plan."""
    tensor: str
    """Hub name."""
    box: Box
    """The block."""
    dtype: str
    """dtype on the wire."""
    offset_bytes: int
    """Offset in the source rank's transfer buffer, a multiple of 64."""
    size_bytes: int
    """Size."""


@dataclass(frozen=True, kw_only=True)
class PieceKey:
    """What a piece holds, wherever it lies: equal keys have equal bytes."""

    tensor: str
    """Hub name."""
    box: Box
    """The block."""
    dtype: str
    """dtype on the wire."""

    @staticmethod
    def of(piece: Piece) -> "PieceKey":
        """The key of a piece."""
        return PieceKey(tensor=piece.tensor, box=piece.box, dtype=piece.dtype)

    @property
    def sort_key(self) -> tuple[str, tuple[int, ...], tuple[int, ...], str]:
        """A total order."""
        return self.tensor, self.box.starts, self.box.sizes, self.dtype


@dataclass(frozen=True, kw_only=True)
class SourceRankPlan:
    """The content of one source rank's transfer buffer."""

    rank: int
    """Global rank of the trainer process."""
    pieces: tuple[Piece, ...]
    """In ascending offset."""


@dataclass(frozen=True, kw_only=True)
class SourceBuffer:
    """Where one source rank's filled buffer is and what it holds."""

    rank: int
    """Global rank of the trainer process."""
    transport: str
    """"shm" or "tcp"."""
    endpoint: str
    """shm: the segment's name. tcp: host:port/buffer."""
    digests: tuple[str, ...]
    """xxh3-64 of each piece as 16 hex digits, in the order of the plan's pieces."""


@dataclass(frozen=True, kw_only=True)
class PieceDestination:
    """Where a piece goes in an engine rank."""

    model: str
    """"target" or "draft"."""
    name: str
    """The engine's name of the parameter."""
    box: Box
    """Block of the parameter."""


@dataclass(frozen=True, kw_only=True)
class PieceTransfer:
    """One piece to fetch."""

    piece: Piece
    """The piece; its offset is the offset in the source buffer."""
    digest: str
    """xxh3-64 of its bytes as 16 hex digits."""
    buffer: int
    """Index into EngineRankTransfer.buffers."""
    destinations: tuple[PieceDestination, ...]
    """Where it goes; never empty."""


@dataclass(frozen=True, kw_only=True)
class EngineRankTransfer:
    """Everything one engine rank fetches for a version."""

    rank: int
    """Rank within the engine."""
    buffers: tuple[SourceBuffer, ...]
    """The source buffers involved."""
    pieces: tuple[PieceTransfer, ...]
    """The pieces."""


@dataclass(frozen=True, kw_only=True)
class StagedPiece:
    """A verified piece in a staging segment."""

    offset_bytes: int
    """Offset in the segment, a multiple of 64."""
    size_bytes: int
    """Size."""
    shape: tuple[int, ...]
    """Shape of the block of the hub tensor."""
    dtype: str
    """Its dtype."""
    digest: str
    """xxh3-64 of its bytes as 16 hex digits."""
    destinations: tuple[PieceDestination, ...]
    """Where it goes in the engine rank."""


@dataclass(frozen=True, kw_only=True)
class StagedRank:
    """The staging segment of one engine rank: what a commit copies into the live parameters."""

    rank: int
    """Rank within the engine."""
    segment: str
    """Name of the shared-memory segment under /dev/shm."""
    pieces: tuple[StagedPiece, ...]
    """What it holds."""
