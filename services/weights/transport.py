"""How bytes move from a trainer rank's buffer to an engine: the protocol of a transport, and which there are."""

from collections.abc import Mapping
from typing import Protocol

from services.common.errors import ConfigError
from services.common.security import Credentials
from services.weights.shm_transport import ShmReceiverTransport, ShmSourceTransport
from services.weights.tcp_transport import TcpReceiverTransport, TcpSourceTransport


class TransferBuffer(Protocol):
    """Memory of a trainer rank that receivers can read."""

    @property
    def endpoint(self) -> str:
        """Where receivers find it."""
        ...

    @property
    def view(self) -> memoryview:
        """Its bytes, writable."""
        ...

    def close(self) -> None:
        """Ends the serving; views stay valid."""
        ...


class SourceTransport(Protocol):
    """The trainer rank's side."""

    @property
    def name(self) -> str:
        """Name of the transport, such as "shm"."""
        ...

    def create_buffer(self, label: str, size_bytes: int) -> TransferBuffer:
        """Memory that is served until it or the transport is closed.

        Raises:
            OverloadedError: too little memory.
        """
        ...

    def close(self) -> None:
        """Ends the serving of all buffers."""
        ...


class BufferReader(Protocol):
    """A receiver's connection to one buffer. One thread reads; any thread may close it."""

    def read_into(self, offset_bytes: int, destination: memoryview) -> None:
        """Fills destination with the buffer's bytes from the offset.

        Raises:
            TransferError: the buffer is shorter, or the stream ended early.
            DeadlineError: the bytes did not come in time.
            UnavailableError: the source is gone.
        """
        ...

    def close(self) -> None:
        """Ends the connection."""
        ...


class ReceiverTransport(Protocol):
    """The engine's side."""

    def open(self, endpoint: str, *, deadline: float) -> BufferReader:
        """A reader of the buffer at an endpoint.

        Args:
            deadline: `time.monotonic()` value by which every read must have ended.

        Raises:
            UnavailableError: the source is gone or refuses this receiver.
            DeadlineError: it did not answer in time.
        """
        ...


def open_source_transport(
    name: str, *, run_id: str, host: str, credentials: Credentials, idle_timeout_seconds: float
) -> SourceTransport:
    """The trainer rank's side of a transport.

    Args:
        host: address that tcp binds and announces.
        idle_timeout_seconds: a tcp receiver that asks nothing for so long is disconnected.

    Raises:
        ConfigError: unknown name, or a network address without token and certificates.
    """
    if name == "shm":
        return ShmSourceTransport(run_id)
    if name == "tcp":
        return TcpSourceTransport(host=host, credentials=credentials, idle_timeout_seconds=idle_timeout_seconds)
    raise ConfigError(f"weights.transport is {name!r}; use shm or tcp")


def open_receiver_transports(credentials: Credentials) -> Mapping[str, ReceiverTransport]:
    """The engine's side of every transport, by name."""
    return {"shm": ShmReceiverTransport(), "tcp": TcpReceiverTransport(credentials)}
