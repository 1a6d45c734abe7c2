"""The trainer rank's side: fills a transfer buffer by plan, and keeps the committed version readable."""

from collections.abc import Sequence
from typing import Protocol

import torch

from services.common.errors import InvalidInputError
from services.weights.boxes import contains, describe
from services.weights.tensor_memory import digest_bytes, tensor_view
from services.weights.transfer import Box, Piece, SourceBuffer, SourceRankPlan, SourceShard
from services.weights.transport import SourceTransport, TransferBuffer


class Shard(Protocol):
    """A block of a hub tensor in this rank's memory."""

    @property
    def shard(self) -> SourceShard:
        """What it is."""
        ...

    @property
    def tensor(self) -> torch.Tensor:
        """Its values, of the shape of shard.box.sizes."""
        ...


class Sender:
    """The transfer buffers of one trainer rank. One thread uses it.

    There are two buffers: one holds the version that was kept last, so that engines that come late can still fetch it,
    and the other is filled. An aborted version is overwritten by the next fill. A reader that is overtaken by a fill
    sees wrong digests and reports them; it never takes mixed bytes for good ones.

    Example:
        buffer = sender.fill(plan, shards)
        # publish the buffers of all ranks, then on every rank:
        if outcome.state is VersionState.COMMITTED:
            sender.keep()
    """

    def __init__(self, *, rank: int, transport: SourceTransport) -> None:
        """Takes the transport over and closes it with itself."""
        self._rank = rank
        self._transport = transport
        self._kept: TransferBuffer | None = None
        self._spare: TransferBuffer | None = None
        self._is_filled = False

    def fill(self, plan: SourceRankPlan, shards: Sequence[Shard]) -> SourceBuffer:
        """The buffer with every piece of the plan, cast to the piece's dtype, and its digests.

        Raises:
            InvalidInputError: the plan is for another rank, or no shard holds a piece.
            OverloadedError: too little memory for the buffer.
        """
        if plan.rank != self._rank:
            raise InvalidInputError(f"plan is for rank {plan.rank}, this is rank {self._rank}; pass this rank's plan")
        self._is_filled = False
        buffer = self._spare_of_size(max((p.offset_bytes + p.size_bytes for p in plan.pieces), default=0))
        by_tensor: dict[str, list[Shard]] = {}
        for shard in shards:
            by_tensor.setdefault(shard.shard.tensor, []).append(shard)
        view = buffer.view
        digests = tuple(_fill_piece(view, piece, by_tensor.get(piece.tensor, [])) for piece in plan.pieces)
        self._is_filled = True
        return SourceBuffer(rank=self._rank, transport=self._transport.name, endpoint=buffer.endpoint, digests=digests)

    def keep(self) -> None:
        """Keeps the buffer filled last readable until the next one is kept: its version is committed."""
        if self._is_filled:
            self._kept, self._spare = self._spare, self._kept
            self._is_filled = False

    def close(self) -> None:
        """Ends the serving and frees the memory."""
        self._transport.close()

    def _spare_of_size(self, size_bytes: int) -> TransferBuffer:
        if self._spare is None or len(self._spare.view) < size_bytes:
            if self._spare is not None:
                self._spare.close()
            self._spare = self._transport.create_buffer(f"trainer-{self._rank}", size_bytes)
        return self._spare


def _fill_piece(view: memoryview, piece: Piece, shards: Sequence[Shard]) -> str:
    owner = next((shard for shard in shards if contains(shard.shard.box, piece.box)), None)
    if owner is None:
        raise InvalidInputError(f"no shard of this rank holds {piece.piece_id}; plan with this rank's own offer")
    if tuple(owner.tensor.shape) != owner.shard.box.sizes:
        raise InvalidInputError(
            f"shard {owner.shard.tensor}{describe(owner.shard.box)} comes as shape {list(owner.tensor.shape)}; give "
            f"{list(owner.shard.box.sizes)}"
        )
    target = tensor_view(view, offset_bytes=piece.offset_bytes, shape=piece.box.sizes, dtype=piece.dtype)
    with torch.no_grad():
        target.copy_(owner.tensor[_relative(piece.box, owner.shard.box).slices])
    return digest_bytes(view[piece.offset_bytes : piece.offset_bytes + piece.size_bytes])


def _relative(box: Box, outer: Box) -> Box:
    starts = tuple(start - origin for start, origin in zip(box.starts, outer.starts, strict=True))
    return Box(starts=starts, sizes=box.sizes)
