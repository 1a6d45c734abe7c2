"""The TCP source refuses wrong tokens, strangers without a certificate, garbage, and the open network."""

import contextlib
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from services.common.errors import ConfigError, DeadlineError, FurlongError, UnavailableError
from services.common.security import NO_CREDENTIALS, Credentials
from services.weights.tcp_transport import TcpBuffer, TcpReceiverTransport, TcpSourceTransport

_KEY = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
_OPENSSL_REQUEST = ["openssl", "req", "-x509", *_KEY, "-days", "2", "-subj", "/CN=furlong"]


@contextmanager
def source(credentials: Credentials = NO_CREDENTIALS) -> Iterator[TcpBuffer]:
    transport = TcpSourceTransport(host="127.0.0.1", credentials=credentials, idle_timeout_seconds=2.0)
    buffer = transport.create_buffer("trainer-0", 1000)
    buffer.view[:4] = b"good"
    yield buffer
    transport.close()


def read(endpoint: str, credentials: Credentials = NO_CREDENTIALS, *, timeout_seconds: float = 5.0) -> bytes:
    reader = TcpReceiverTransport(credentials).open(endpoint, deadline=time.monotonic() + timeout_seconds)
    with contextlib.closing(reader):
        data = bytearray(4)
        reader.read_into(0, memoryview(data))
        return bytes(data)


@pytest.fixture(scope="module")
def certified(tmp_path_factory: pytest.TempPathFactory) -> Credentials:
    return make_credentials(tmp_path_factory.mktemp("certified"))


def make_credentials(folder: Path) -> Credentials:
    """A certificate that is its own authority, for 127.0.0.1."""
    key, certificate = folder / "key.pem", folder / "certificate.pem"
    files = ["-keyout", str(key), "-out", str(certificate), "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run([*_OPENSSL_REQUEST, *files], check=True, capture_output=True, timeout=30)
    pem = certificate.read_bytes()
    return Credentials(token="right", certificate=pem, key=key.read_bytes(), authority=pem)


def test_right_token_reads_and_wrong_token_is_refused():
    right, wrong = replace(NO_CREDENTIALS, token="right"), replace(NO_CREDENTIALS, token="wrong")
    with source(right) as buffer:
        assert read(buffer.endpoint, right) == b"good"
        for credentials in (wrong, NO_CREDENTIALS):
            with pytest.raises(UnavailableError, match="refuses the token"):
                read(buffer.endpoint, credentials)
        assert read(buffer.endpoint, right) == b"good"


def test_mutual_tls_reads_and_strangers_are_refused(certified: Credentials, tmp_path: Path):
    stranger = make_credentials(tmp_path)
    with source(certified) as buffer:
        assert read(buffer.endpoint, certified) == b"good"
        with pytest.raises(UnavailableError, match="certificate verify failed"):
            read(buffer.endpoint, stranger)
        with pytest.raises(DeadlineError):
            read(buffer.endpoint, NO_CREDENTIALS, timeout_seconds=0.3)
        # A client that trusts the source but shows another authority's certificate.
        with pytest.raises(FurlongError):
            read(buffer.endpoint, replace(stranger, authority=certified.authority))


def test_open_network_needs_token_and_certificates():
    with pytest.raises(ConfigError, match=r"host 0\.0\.0\.0 is reachable from the network"):
        TcpSourceTransport(host="0.0.0.0", credentials=NO_CREDENTIALS, idle_timeout_seconds=1.0)


@pytest.mark.parametrize("request_bytes", [b"\xff" * 18, b"\0\x03" + b"\xff" * 16 + b"abc", b"GET / HTTP/1.1\r\n\r\n"])
def test_garbage_gets_no_bytes_and_does_not_stop_the_source(request_bytes: bytes):
    with source() as buffer:
        host, port = buffer.endpoint.partition("/")[0].split(":")
        with socket.create_connection((host, int(port)), timeout=5.0) as stream:
            greeting = stream.recv(36, socket.MSG_WAITALL)
            assert greeting[:4] == b"FLW1"
            stream.sendall(b"\0" * 32 + request_bytes)
            # Wrong proof: one status byte that says so, then the end.
            assert stream.recv(64, socket.MSG_WAITALL) == b"\1"
        assert read(buffer.endpoint) == b"good"


def test_ranges_outside_a_buffer_and_closed_buffers_are_refused():
    with source() as buffer:
        reader = TcpReceiverTransport(NO_CREDENTIALS).open(buffer.endpoint, deadline=time.monotonic() + 5.0)
        with contextlib.closing(reader):
            data = memoryview(bytearray(8))
            for offset in (993, 1 << 63):
                with pytest.raises(FurlongError, match=r"has no bytes \d+\+8 of buffer trainer-0-"):
                    reader.read_into(offset, data)
            reader.read_into(992, data)
            buffer.close()
            with pytest.raises(FurlongError, match="has no bytes"):
                reader.read_into(0, data)


def test_peer_that_is_no_source_is_named():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        client = socket.create_connection(("127.0.0.1", port))
        server, _ = listener.accept()
        client.close()
        server.close()
    with pytest.raises(UnavailableError, match=f"source 127.0.0.1:{port} cannot be reached"):
        read(f"127.0.0.1:{port}/x")
