"""Transport over TCP: a trainer rank serves byte ranges of its buffers, receivers ask for them.

    server -> client   magic (4) nonce (32)
    client -> server   HMAC-SHA256(token, nonce) (32)
    server -> client   status (1): 0 welcome, 1 wrong token
    client -> server   name length (u16) offset (u64) length (u64) name          again and again
    server -> client   status (1) length (u64) bytes                             status 2: no such range

Numbers are big-endian. With certificates every connection is mutual TLS. Bytes are served as they are at the moment of
the read: receivers check digests, so a buffer may be refilled at any time.
"""

import contextlib
import hmac
import logging
import secrets
import socket
import ssl
import struct
import tempfile
import threading
import time
from mmap import mmap

from services.common.errors import DeadlineError, InvalidInputError, TransferError, UnavailableError
from services.common.security import Credentials, require_secure_bind

logger = logging.getLogger(__name__)

_MAGIC = b"FLW1"
_NONCE_BYTES = 32
_PROOF_BYTES = 32
_REQUEST = struct.Struct("!HQQ")
_REPLY = struct.Struct("!BQ")
_MAX_NAME_BYTES = 255
_OK, _WRONG_TOKEN, _NO_SUCH_RANGE = 0, 1, 2
# A connection costs a thread; more receivers than this on one source mean a broken plan or an attack.
_MAX_CONNECTIONS = 256
_HANDSHAKE_SECONDS = 10.0
# A block this long keeps system calls rare and a slow source visible.
_BLOCK_BYTES = 4 * 1024 * 1024


class TcpBuffer:
    """Private memory of the trainer rank, served under a name."""

    def __init__(self, *, address: str, name: str, size_bytes: int) -> None:
        self.name = name
        self.endpoint = f"{address}/{name}"
        self._map = mmap(-1, max(1, size_bytes))
        self.is_open = True

    @property
    def view(self) -> memoryview:
        """All bytes, writable."""
        return memoryview(self._map)

    def close(self) -> None:
        """Ends the serving of this buffer."""
        self.is_open = False


class TcpSourceTransport:
    """The trainer rank's side: one listening port and one thread per connection."""

    name = "tcp"

    def __init__(self, *, host: str, credentials: Credentials, idle_timeout_seconds: float) -> None:
        """Binds and listens on a free port.

        Raises:
            ConfigError: the host is reachable from the network without token and certificates.
        """
        require_secure_bind(host, credentials)
        self._token = credentials.token.encode()
        self._tls = _server_context(credentials)
        self._idle_timeout_seconds = idle_timeout_seconds
        self._buffers: dict[str, TcpBuffer] = {}
        self._lock = threading.Lock()
        self._connections: set[socket.socket] = set()
        self._listener = socket.create_server((host, 0), backlog=_MAX_CONNECTIONS)
        self._address = f"{host}:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, name="weights-tcp", daemon=True).start()

    def create_buffer(self, label: str, size_bytes: int) -> TcpBuffer:
        """New memory under the label and a random suffix."""
        name = f"{label}-{secrets.token_hex(4)}"
        buffer = TcpBuffer(address=self._address, name=name, size_bytes=size_bytes)
        self._buffers = {known: other for known, other in self._buffers.items() if other.is_open} | {name: buffer}
        return buffer

    def close(self) -> None:
        """Ends the listening and every connection."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with self._lock:
            connections = list(self._connections)
        for connection in connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with self._lock:
                is_full = len(self._connections) >= _MAX_CONNECTIONS
                if not is_full:
                    self._connections.add(connection)
            if is_full:
                connection.close()
                continue
            threading.Thread(target=self._serve, args=(connection,), name="weights-tcp", daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        stream = connection
        try:
            connection.settimeout(_HANDSHAKE_SECONDS)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._tls:
                stream = self._tls.wrap_socket(connection, server_side=True)
            if self._welcome(stream):
                stream.settimeout(self._idle_timeout_seconds)
                while self._answer(stream):
                    pass
        except (OSError, EOFError) as error:
            logger.info("weights connection ended", extra={"detail": str(error)})
        finally:
            with self._lock:
                self._connections.discard(connection)
            stream.close()
            connection.close()

    def _welcome(self, stream: socket.socket) -> bool:
        nonce = secrets.token_bytes(_NONCE_BYTES)
        stream.sendall(_MAGIC + nonce)
        is_welcome = hmac.compare_digest(_read(stream, _PROOF_BYTES), _proof(self._token, nonce))
        stream.sendall(bytes([_OK if is_welcome else _WRONG_TOKEN]))
        return is_welcome

    def _answer(self, stream: socket.socket) -> bool:
        """Serves one range; False when the receiver has ended the connection."""
        first = stream.recv(1)
        if not first:
            return False
        name_length, offset, length = _REQUEST.unpack(first + _read(stream, _REQUEST.size - 1))
        if name_length > _MAX_NAME_BYTES:
            return False
        buffer = self._buffers.get(_read(stream, name_length).decode("ascii", errors="replace"))
        if buffer is None or not buffer.is_open or offset + length > len(buffer.view):
            stream.sendall(_REPLY.pack(_NO_SUCH_RANGE, 0))
            return True
        stream.sendall(_REPLY.pack(_OK, length))
        with buffer.view[offset : offset + length] as view:
            for start in range(0, length, _BLOCK_BYTES):
                stream.sendall(view[start : start + _BLOCK_BYTES])
        return True


class TcpReader:
    """A receiver's connection to one buffer."""

    def __init__(self, *, stream: socket.socket, peer: str, name: str, deadline: float) -> None:
        self._stream = stream
        self._peer = peer
        self._name = name
        self._deadline = deadline

    def read_into(self, offset_bytes: int, destination: memoryview) -> None:
        """Asks for the range and fills destination.

        Raises:
            TransferError: the source has no such range, or the stream ended early.
            DeadlineError: the bytes did not come in time.
            UnavailableError: the source is gone.
        """
        name = self._name.encode()
        with _PeerErrors(self._peer):
            self._stream.settimeout(_seconds_until(self._deadline, self._peer))
            self._stream.sendall(_REQUEST.pack(len(name), offset_bytes, len(destination)) + name)
            status, length = _REPLY.unpack(self._read(_REPLY.size))
            if status != _OK or length != len(destination):
                raise TransferError(
                    f"source {self._peer} has no bytes {offset_bytes}+{len(destination)} of buffer {self._name}; the "
                    "trainer must publish again"
                )
            self._fill(destination)

    def close(self) -> None:
        """Ends the connection, also while another thread reads from it."""
        with contextlib.suppress(OSError):
            self._stream.shutdown(socket.SHUT_RDWR)
        self._stream.close()

    def _read(self, num_bytes: int) -> bytes:
        data = bytearray(num_bytes)
        self._fill(memoryview(data))
        return bytes(data)

    def _fill(self, destination: memoryview) -> None:
        done = 0
        while done < len(destination):
            self._stream.settimeout(_seconds_until(self._deadline, self._peer))
            received = self._stream.recv_into(destination[done : done + _BLOCK_BYTES])
            if not received:
                raise TransferError(
                    f"source {self._peer} ended the stream after {done} of {len(destination)} bytes; publish again"
                )
            done += received


class TcpReceiverTransport:
    """The engine's side."""

    def __init__(self, credentials: Credentials) -> None:
        self._token = credentials.token.encode()
        self._tls = _client_context(credentials)

    def open(self, endpoint: str, *, deadline: float) -> TcpReader:
        """Connects and proves the token.

        Raises:
            InvalidInputError: the endpoint is no host:port/buffer.
            UnavailableError: the source is gone or refuses the token.
            DeadlineError: it did not answer in time.
        """
        address, _, name = endpoint.partition("/")
        host, _, port = address.rpartition(":")
        if not (host and port.isdigit() and name.isascii() and 0 < len(name) <= _MAX_NAME_BYTES):
            raise InvalidInputError(f"tcp endpoint {endpoint!r} is malformed; wanted host:port/buffer")
        with _PeerErrors(address):
            timeout = min(_HANDSHAKE_SECONDS, _seconds_until(deadline, address))
            stream: socket.socket = socket.create_connection((host, int(port)), timeout=timeout)
            try:
                stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                if self._tls:
                    stream = self._tls.wrap_socket(stream, server_hostname=host)
                self._introduce(stream, address)
            except BaseException:
                stream.close()
                raise
        return TcpReader(stream=stream, peer=address, name=name, deadline=deadline)

    def _introduce(self, stream: socket.socket, address: str) -> None:
        greeting = _read(stream, len(_MAGIC) + _NONCE_BYTES)
        if not greeting.startswith(_MAGIC):
            raise UnavailableError(
                f"{address} greets with {greeting[:4]!r}, wanted {_MAGIC!r}; it is no weights source"
            )
        stream.sendall(_proof(self._token, greeting[len(_MAGIC) :]))
        if _read(stream, 1)[0] != _OK:
            raise UnavailableError(f"source {address} refuses the token; use the trainer's security.token_file")


class _PeerErrors(contextlib.AbstractContextManager[None]):
    """Turns socket errors into ours, naming the peer."""

    def __init__(self, peer: str) -> None:
        self._peer = peer

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, TimeoutError):
            raise DeadlineError(f"source {self._peer} did not answer in time; see the trainer's log") from error
        if isinstance(error, EOFError):
            raise TransferError(f"source {self._peer} ended the stream early; publish again") from error
        if isinstance(error, OSError):
            raise UnavailableError(f"source {self._peer} cannot be reached ({error}); see the trainer's log") from error


def _seconds_until(deadline: float, peer: str) -> float:
    seconds = deadline - time.monotonic()
    if seconds <= 0:
        raise DeadlineError(f"source {peer} did not deliver in time; raise weights.phase_timeout_seconds")
    return seconds


def _read(stream: socket.socket, num_bytes: int) -> bytes:
    data = b""
    while len(data) < num_bytes:
        block = stream.recv(num_bytes - len(data))
        if not block:
            raise EOFError(f"the peer ended the stream after {len(data)} of {num_bytes} bytes")
        data += block
    return data


def _proof(token: bytes, nonce: bytes) -> bytes:
    return hmac.digest(token, nonce, "sha256")


def _server_context(credentials: Credentials) -> ssl.SSLContext | None:
    if not credentials.certificate:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cadata=credentials.authority.decode())
    context.verify_mode = ssl.CERT_REQUIRED
    _load_certificate(context, credentials)
    return context


def _client_context(credentials: Credentials) -> ssl.SSLContext | None:
    if not credentials.certificate:
        return None
    context = ssl.create_default_context(ssl.Purpose.SERVER_AUTH, cadata=credentials.authority.decode())
    _load_certificate(context, credentials)
    return context


def _load_certificate(context: ssl.SSLContext, credentials: Credentials) -> None:
    # The library reads certificates from files only; this one is readable by this user and gone at once.
    with tempfile.NamedTemporaryFile() as file:
        file.write(credentials.key + b"\n" + credentials.certificate)
        file.flush()
        context.load_cert_chain(file.name)
