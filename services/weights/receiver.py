"""The engine's side: fetches a version's pieces into staging segments while the engine generates, and verifies them."""

import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass

from services.common.errors import AbortedError, InvalidInputError, StateConflictError, TransferError
from services.common.records import PolicyVersion
from services.weights.published import PrepareFigures
from services.weights.segment import Segment, create_segment, remove_stale_segments
from services.weights.tensor_memory import digest_bytes
from services.weights.transfer import (
    EngineRankLayout,
    EngineRankTransfer,
    PieceTransfer,
    SourceBuffer,
    StagedPiece,
    StagedRank,
    align,
)
from services.weights.transfer_checks import check_transfer
from services.weights.transport import BufferReader, ReceiverTransport

# Neighbouring pieces are read at once up to this size: few large reads are fast, and an abort is noticed in between.
_MAX_RUN_BYTES = 64 * 1024 * 1024


class Receiver:
    """The staging of one engine. Any thread may call any method; one version is received at a time.

    Each engine rank has one staging segment, made at the first version and reused. What was staged is valid until the
    next prepare begins.
    """

    def __init__(
        self,
        *,
        run_id: str,
        engine_id: str,
        layouts: Sequence[EngineRankLayout],
        transports: Mapping[str, ReceiverTransport],
        timeout_seconds: float,
        num_streams: int = 4,
    ) -> None:
        """Removes what dead processes of the run left behind.

        Args:
            layouts: what every transfer is checked against.
            timeout_seconds: most time a prepare may take.
            num_streams: source buffers read at the same time.
        """
        remove_stale_segments(run_id)
        self._run_id = run_id
        self._engine_id = engine_id
        self._layouts = {layout.rank: layout for layout in layouts}
        self._transports = transports
        self._timeout_seconds = timeout_seconds
        self._num_streams = num_streams
        self._segments: dict[int, Segment] = {}
        self._busy = threading.Lock()
        self._guard = threading.Lock()
        self._cancel = threading.Event()
        self._readers: set[BufferReader] = set()
        self._preparing: PolicyVersion | None = None
        self._staged: tuple[PolicyVersion, tuple[StagedRank, ...]] | None = None

    def prepare(self, version: PolicyVersion, ranks: Sequence[EngineRankTransfer]) -> PrepareFigures:
        """Holds the version's verified bytes in staging, in place of what was staged; a running prepare is given up.

        Raises:
            TransferError: bytes, sizes or dtypes that do not match; nothing is staged then.
            InvalidInputError: the transfers are malformed or not for this engine.
            UnavailableError: a source is gone.
            DeadlineError: it took too long.
            AbortedError: the version was aborted meanwhile.
        """
        started = time.monotonic()
        deadline = started + self._timeout_seconds
        with self._guard:
            self._give_up()
            cancel = self._cancel = threading.Event()
            self._preparing = version
        if not self._busy.acquire(timeout=self._timeout_seconds):
            raise StateConflictError(f"engine {self._engine_id} is still busy with another version; prepare again")
        try:
            self._staged = None
            self._check(ranks)
            staged = self._receive(ranks, deadline, cancel)
            with self._guard:
                if cancel.is_set():
                    raise self._given_up()
                self._staged = (version, staged)
        finally:
            self._busy.release()
        num_bytes = sum(piece.size_bytes for rank in staged for piece in rank.pieces)
        return PrepareFigures(num_bytes=num_bytes, seconds=time.monotonic() - started)

    def staged(self, version: PolicyVersion) -> tuple[StagedRank, ...]:
        """What is staged for the version, one entry per engine rank.

        Raises:
            StateConflictError: staging does not hold it.
        """
        with self._guard:
            if self._staged is None or self._staged[0] != version:
                held = self._staged[0] if self._staged else "nothing"
                raise StateConflictError(
                    f"engine {self._engine_id} has {held} staged, wanted version {version}; prepare it first"
                )
            return self._staged[1]

    def is_staged(self, version: PolicyVersion) -> bool:
        """Whether staging holds the version."""
        with self._guard:
            return self._staged is not None and self._staged[0] == version

    def abort(self, version: PolicyVersion) -> None:
        """Forgets the version, also while it is being received. An unknown version changes nothing."""
        with self._guard:
            if self._preparing == version:
                self._give_up()
            if self._staged is not None and self._staged[0] == version:
                self._staged = None

    def close(self) -> None:
        """Gives up a running prepare and removes the staging segments."""
        with self._guard:
            self._give_up()
            self._staged = None
        with self._busy:
            for segment in self._segments.values():
                segment.close()
            self._segments.clear()

    def _give_up(self) -> None:
        """Ends the running prepare, also when it waits for bytes; the caller holds the guard."""
        self._cancel.set()
        for reader in self._readers:
            reader.close()

    def _check(self, ranks: Sequence[EngineRankTransfer]) -> None:
        if sorted(transfer.rank for transfer in ranks) != sorted(self._layouts):
            raise InvalidInputError(
                f"transfers are for ranks {[transfer.rank for transfer in ranks]}, engine {self._engine_id} has ranks "
                f"{sorted(self._layouts)}; send one for each"
            )
        for transfer in ranks:
            check_transfer(transfer, self._layouts[transfer.rank])
            for buffer in transfer.buffers:
                if buffer.transport not in self._transports:
                    raise InvalidInputError(
                        f"buffer of rank {buffer.rank} uses transport {buffer.transport!r}, this engine knows "
                        f"{', '.join(self._transports)}; set weights.transport to one of them"
                    )

    def _receive(
        self, ranks: Sequence[EngineRankTransfer], deadline: float, cancel: threading.Event
    ) -> tuple[StagedRank, ...]:
        """Reads every buffer of every rank, several at a time; the first failure ends all."""
        staged: list[StagedRank] = []
        with ThreadPoolExecutor(self._num_streams, thread_name_prefix="weights-receive") as pool:
            futures = []
            for transfer in ranks:
                ordered = sorted(transfer.pieces, key=lambda piece: (piece.buffer, piece.piece.offset_bytes))
                places = _place(ordered)
                segment = self._segment(transfer.rank, places[-1].end_bytes if places else 0)
                staged.append(_staged_rank(transfer.rank, segment.name, places))
                for index, buffer in enumerate(transfer.buffers):
                    runs = _runs([place for place in places if place.transfer.buffer == index])
                    futures.append(pool.submit(self._read_buffer, buffer, runs, segment.view, deadline, cancel))
            done, _ = wait(futures, return_when=FIRST_EXCEPTION)
            errors = [error for future in done if (error := future.exception())]
            if errors:
                if cancel.is_set():
                    raise self._given_up() from errors[0]
                cancel.set()
                raise errors[0]
        return tuple(staged)

    def _read_buffer(
        self,
        buffer: SourceBuffer,
        runs: Sequence[Sequence["_Place"]],
        staging: memoryview,
        deadline: float,
        cancel: threading.Event,
    ) -> None:
        reader = self._transports[buffer.transport].open(buffer.endpoint, deadline=deadline)
        with self._guard:
            self._readers.add(reader)
        try:
            for run in runs:
                if cancel.is_set():
                    raise self._given_up()
                first = run[0]
                destination = staging[first.offset_bytes : run[-1].end_bytes]
                reader.read_into(first.transfer.piece.offset_bytes, destination)
                for place in run:
                    _verify(place, staging, buffer)
        finally:
            with self._guard:
                self._readers.discard(reader)
            reader.close()

    def _given_up(self) -> AbortedError:
        return AbortedError(f"engine {self._engine_id} stopped receiving: the version was given up; publish again")

    def _segment(self, rank: int, size_bytes: int) -> Segment:
        segment = self._segments.get(rank)
        if segment is None or segment.size_bytes < size_bytes:
            if segment is not None:
                segment.close()
            label = f"{self._engine_id}-rank-{rank}"
            segment = create_segment(run_id=self._run_id, label=label, size_bytes=size_bytes)
            self._segments[rank] = segment
        return segment


@dataclass(frozen=True, kw_only=True)
class _Place:
    """Where a piece goes in staging."""

    transfer: PieceTransfer
    """The piece."""
    offset_bytes: int
    """Its offset in the staging segment."""

    @property
    def end_bytes(self) -> int:
        """First byte after it in the staging segment."""
        return self.offset_bytes + self.transfer.piece.size_bytes


def _place(pieces: Sequence[PieceTransfer]) -> list[_Place]:
    places: list[_Place] = []
    for transfer in pieces:
        offset = align(places[-1].end_bytes) if places else 0
        places.append(_Place(transfer=transfer, offset_bytes=offset))
    return places


def _runs(places: Sequence[_Place]) -> list[list[_Place]]:
    """Pieces of one buffer in groups that one read fetches: neighbours in the buffer, of bounded size."""
    runs: list[list[_Place]] = []
    for place in places:
        if runs and _continues(runs[-1], place):
            runs[-1].append(place)
        else:
            runs.append([place])
    return runs


def _continues(run: Sequence[_Place], place: _Place) -> bool:
    source_distance = place.transfer.piece.offset_bytes - run[0].transfer.piece.offset_bytes
    staging_distance = place.offset_bytes - run[0].offset_bytes
    return source_distance == staging_distance and place.end_bytes - run[0].offset_bytes <= _MAX_RUN_BYTES


def _staged_rank(rank: int, segment: str, places: Sequence[_Place]) -> StagedRank:
    pieces = tuple(
        StagedPiece(
            offset_bytes=place.offset_bytes,
            size_bytes=place.transfer.piece.size_bytes,
            shape=place.transfer.piece.box.sizes,
            dtype=place.transfer.piece.dtype,
            digest=place.transfer.digest,
            destinations=place.transfer.destinations,
        )
        for place in places
    )
    return StagedRank(rank=rank, segment=segment, pieces=pieces)


def _verify(place: _Place, staging: memoryview, buffer: SourceBuffer) -> None:
    seen = digest_bytes(staging[place.offset_bytes : place.end_bytes])
    if seen != place.transfer.digest:
        raise TransferError(
            f"piece {place.transfer.piece.piece_id} from rank {buffer.rank} ({buffer.transport} {buffer.endpoint}) has "
            f"digest {seen}, wanted {place.transfer.digest}; the trainer must publish again"
        )
