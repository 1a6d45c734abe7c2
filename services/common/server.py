"""A gRPC server as every service runs it: health, reflection, error mapping, tokens, metrics, orderly drain."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from services.common.call_interceptor import CallInterceptor
from services.common.errors import ConfigError
from services.common.security import Credentials, require_secure_bind
from services.common.telemetry import CallMetrics

MAX_MESSAGE_BYTES = 64 * 1024 * 1024
"""Bound of one message in either direction."""
_NUM_THREADS = 32


@dataclass(frozen=True, kw_only=True)
class ServedService:
    """One gRPC service of a server."""

    full_name: str
    """Such as "furlong.reward.v1.RewardService"."""
    add_to: Callable[[grpc.Server], None]
    """Adds the servicer."""


class Server:
    """A bound and started server. It reports NOT_SERVING until `set_serving` is called."""

    def __init__(
        self,
        services: Sequence[ServedService],
        *,
        address: str,
        credentials: Credentials,
        metrics: CallMetrics,
        num_threads: int = _NUM_THREADS,
    ) -> None:
        """Binds and starts.

        Args:
            num_threads: most calls that run at once, health checks among them; more wait.

        Raises:
            ConfigError: the address is taken, or open to the network without a token and TLS.
        """
        require_secure_bind(address.rpartition(":")[0], credentials)
        self._names = [service.full_name for service in services]
        self._server = grpc.server(
            ThreadPoolExecutor(max_workers=num_threads, thread_name_prefix="grpc"),
            interceptors=[CallInterceptor(credentials, metrics)],
            options=server_options(),
        )
        for service in services:
            service.add_to(self._server)
        self._health = health.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        reflection.enable_server_reflection([*self._names, health.SERVICE_NAME, reflection.SERVICE_NAME], self._server)
        self._set_health(health_pb2.HealthCheckResponse.NOT_SERVING)
        self.port = _bind(self._server, address, credentials)
        self._server.start()

    def set_serving(self) -> None:
        """Reports SERVING: the service can do its work."""
        self._set_health(health_pb2.HealthCheckResponse.SERVING)

    def stop(self, *, grace_seconds: float = 3.0) -> None:
        """Reports NOT_SERVING, takes no new calls, and gives running ones the grace to end."""
        self._health.enter_graceful_shutdown()
        self._server.stop(grace_seconds).wait()

    def _set_health(self, state: int) -> None:
        for name in ["", *self._names]:
            self._health.set(name, state)


def server_options() -> list[tuple[str, int]]:
    """Bounded messages, and a port belongs to one server."""
    return [
        ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
        ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
        ("grpc.so_reuseport", 0),
    ]


def _bind(server: grpc.Server, address: str, credentials: Credentials) -> int:
    tls = credentials.server
    try:
        port = server.add_secure_port(address, tls) if tls else server.add_insecure_port(address)
    except RuntimeError as error:
        raise ConfigError(f"address {address} cannot be bound; free the port or choose another one") from error
    return port
