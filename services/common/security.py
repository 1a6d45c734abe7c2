"""Tokens and certificates: what a port needs before it may leave loopback."""

import hmac
import ipaddress
from dataclasses import dataclass
from pathlib import Path

import grpc

from services.common.config.run import SecurityConfig
from services.common.errors import ConfigError

TOKEN_HEADER = "authorization"


@dataclass(frozen=True, kw_only=True, repr=False)
class Credentials:
    """The secrets of a process. Its repr shows none of them."""

    token: str
    """Bearer token; empty when calls carry none."""
    certificate: bytes
    """PEM certificate; empty without TLS."""
    key: bytes
    """PEM private key."""
    authority: bytes
    """PEM certificate authority of all peers."""

    def accepts(self, header: str) -> bool:
        """Whether an authorization header carries the token."""
        return not self.token or hmac.compare_digest(header.encode(), f"Bearer {self.token}".encode())

    @property
    def server(self) -> grpc.ServerCredentials | None:
        """Mutual TLS for a server; None without certificates."""
        if not self.certificate:
            return None
        return grpc.ssl_server_credentials(
            [(self.key, self.certificate)], root_certificates=self.authority, require_client_auth=True
        )

    @property
    def channel(self) -> grpc.ChannelCredentials | None:
        """Mutual TLS and the token for a client; None without certificates."""
        if not self.certificate:
            return None
        tls = grpc.ssl_channel_credentials(self.authority, self.key, self.certificate)
        if not self.token:
            return tls
        return grpc.composite_channel_credentials(tls, grpc.access_token_call_credentials(self.token))


NO_CREDENTIALS = Credentials(token="", certificate=b"", key=b"", authority=b"")
"""For loopback."""


def load_credentials(config: SecurityConfig) -> Credentials:
    """The secrets that the recipe's files hold.

    Raises:
        ConfigError: a file is missing, certificate, key and authority are not given together, or a token has no TLS.
    """
    paths = (config.tls_certificate, config.tls_key, config.tls_ca)
    if any(paths) and not all(paths):
        raise ConfigError(
            "security has some of tls_certificate, tls_key and tls_ca; TLS needs all three, or leave all three empty"
        )
    if config.token_file and not any(paths):
        raise ConfigError(
            "security.token_file is set without tls_certificate, tls_key and tls_ca; a token needs TLS to stay secret"
        )
    certificate, key, authority = (_read(path) for path in paths)
    token = _read(config.token_file).decode().strip()
    return Credentials(token=token, certificate=certificate, key=key, authority=authority)


def require_secure_bind(host: str, credentials: Credentials) -> None:
    """Allows loopback, and anything else only with a token and TLS.

    Raises:
        ConfigError: the port would be open to the network without both.
    """
    if is_loopback(host) or (credentials.token and credentials.certificate):
        return
    raise ConfigError(
        f"host {host} is reachable from the network without a token and TLS; set security.token_file, "
        "security.tls_certificate, tls_key and tls_ca, or bind 127.0.0.1"
    )


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _read(path: str) -> bytes:
    if not path:
        return b""
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise ConfigError(f"security file {path} cannot be read ({error.strerror}); give an existing file") from error
