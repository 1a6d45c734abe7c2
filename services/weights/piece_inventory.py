"""The pieces of one published version: what they are, where they lie, and what an engine must fetch. Pure."""

import re
from collections.abc import Sequence

from services.common.errors import InvalidInputError, StateConflictError
from services.weights.plan import CompletePlan, EngineRankPlan
from services.weights.transfer import EngineRankTransfer, Piece, PieceKey, PieceTransfer, SourceBuffer

_DIGEST = re.compile(r"[0-9a-f]{16}")


class PieceInventory:
    """Every piece that the filled buffers of a version hold."""

    def __init__(self, plan: CompletePlan, buffers: Sequence[SourceBuffer]) -> None:
        """Matches the buffers with the plan they were filled for.

        Raises:
            InvalidInputError: a buffer is missing, repeated, unknown to the plan, or has not one digest per piece.
        """
        by_rank = {buffer.rank: buffer for buffer in buffers}
        if len(by_rank) != len(buffers):
            raise InvalidInputError(f"buffers of ranks {[b.rank for b in buffers]} repeat; give one per rank")
        unknown = set(by_rank) - {source.rank for source in plan.ranks}
        if unknown:
            raise InvalidInputError(f"buffers of ranks {sorted(unknown)} are not in plan {plan.plan_id}; plan again")
        self._pieces: dict[PieceKey, tuple[Piece, SourceBuffer, str]] = {}
        for source in plan.ranks:
            buffer = by_rank.get(source.rank)
            if source.pieces:
                self._add(source.pieces, buffer, source.rank)

    def transfers(self, ranks: Sequence[EngineRankPlan]) -> tuple[EngineRankTransfer, ...]:
        """What the ranks of one engine fetch to hold this version.

        Raises:
            StateConflictError: a piece is in no buffer.
        """
        return tuple(self._rank_transfer(rank) for rank in ranks)

    def _add(self, pieces: Sequence[Piece], buffer: SourceBuffer | None, rank: int) -> None:
        if buffer is None:
            raise InvalidInputError(f"the buffer of rank {rank} is missing; it carries {len(pieces)} pieces")
        if len(buffer.digests) != len(pieces):
            raise InvalidInputError(
                f"the buffer of rank {rank} has {len(buffer.digests)} digests for {len(pieces)} pieces; give as many"
            )
        place = SourceBuffer(rank=rank, transport=buffer.transport, endpoint=buffer.endpoint, digests=())
        for piece, digest in zip(pieces, buffer.digests, strict=True):
            if not _DIGEST.fullmatch(digest):
                raise InvalidInputError(f"digest {digest!r} of {piece.piece_id} is not 16 hex digits; use xxh3-64")
            self._pieces[PieceKey.of(piece)] = (piece, place, digest)

    def _rank_transfer(self, plan: EngineRankPlan) -> EngineRankTransfer:
        buffers: list[SourceBuffer] = []
        pieces: list[PieceTransfer] = []
        for planned in plan.pieces:
            found = self._pieces.get(PieceKey.of(planned.piece))
            if found is None:
                raise StateConflictError(
                    f"no buffer of the version holds {planned.piece.piece_id}; wait for the next version"
                )
            piece, place, digest = found
            if place not in buffers:
                buffers.append(place)
            pieces.append(
                PieceTransfer(
                    piece=piece, digest=digest, buffer=buffers.index(place), destinations=planned.destinations
                )
            )
        return EngineRankTransfer(rank=plan.rank, buffers=tuple(buffers), pieces=tuple(pieces))
