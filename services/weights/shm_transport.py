"""Transport through shared memory, for trainer ranks and engines on one host."""

import threading
import time

import numpy as np

from services.common.errors import DeadlineError, NotFoundError, TransferError, UnavailableError
from services.weights.segment import Segment, create_segment, open_segment, remove_stale_segments


class ShmBuffer:
    """A segment that receivers map."""

    def __init__(self, segment: Segment) -> None:
        self._segment = segment

    @property
    def endpoint(self) -> str:
        """Name of the segment."""
        return self._segment.name

    @property
    def view(self) -> memoryview:
        """All bytes, writable."""
        return self._segment.view

    def close(self) -> None:
        """Removes the segment."""
        self._segment.close()


class ShmSourceTransport:
    """The trainer rank's side."""

    name = "shm"

    def __init__(self, run_id: str) -> None:
        """Removes what dead processes of the run left behind."""
        remove_stale_segments(run_id)
        self._run_id = run_id
        self._buffers: list[ShmBuffer] = []

    def create_buffer(self, label: str, size_bytes: int) -> ShmBuffer:
        """A new segment.

        Raises:
            OverloadedError: /dev/shm has too little room.
        """
        buffer = ShmBuffer(create_segment(run_id=self._run_id, label=label, size_bytes=size_bytes))
        self._buffers.append(buffer)
        return buffer

    def close(self) -> None:
        """Removes every segment."""
        for buffer in self._buffers:
            buffer.close()


class ShmReader:
    """A mapped segment of a trainer rank."""

    def __init__(self, segment: Segment, deadline: float) -> None:
        self._segment = segment
        self._deadline = deadline

    def read_into(self, offset_bytes: int, destination: memoryview) -> None:
        """Copies without holding the interpreter's lock.

        Raises:
            TransferError: the segment is shorter.
            DeadlineError: the deadline has passed.
        """
        end = offset_bytes + len(destination)
        if end > self._segment.size_bytes:
            raise TransferError(
                f"segment {self._segment.name} has {self._segment.size_bytes} bytes, {end} are wanted; plan again"
            )
        if time.monotonic() > self._deadline:
            raise DeadlineError(f"segment {self._segment.name} was not read in time; raise phase_timeout_seconds")
        source = np.frombuffer(self._segment.view, dtype=np.uint8, count=len(destination), offset=offset_bytes)
        np.copyto(np.frombuffer(destination, dtype=np.uint8), source)

    def close(self) -> None:
        """Nothing: the mapping serves the next version too."""


class ShmReceiverTransport:
    """The engine's side. Segments stay mapped, since mapping costs as much as copying; removed ones are let go."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._segments: dict[str, Segment] = {}

    def open(self, endpoint: str, *, deadline: float) -> ShmReader:
        """A reader of the named segment.

        Raises:
            UnavailableError: its owner has ended.
        """
        with self._lock:
            for name in [name for name, segment in self._segments.items() if not segment.is_named]:
                self._segments.pop(name).close()
            if endpoint not in self._segments:
                try:
                    self._segments[endpoint] = open_segment(endpoint)
                except NotFoundError as error:
                    raise UnavailableError(str(error)) from error
            return ShmReader(self._segments[endpoint], deadline)
