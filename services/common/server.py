"""A gRPC server as every service runs it: health, reflection, error mapping, tokens, metrics, orderly drain."""

import logging
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

import grpc
from google.protobuf import any_pb2
from google.rpc import error_details_pb2, status_pb2
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection
from grpc_status import rpc_status

from services.common.errors import ConfigError, FurlongError, OverloadedError
from services.common.security import TOKEN_HEADER, Credentials, require_secure_bind
from services.common.telemetry import CallMetrics

if TYPE_CHECKING:
    from typing import Any

    # The library's own signature is generic in every call; there is no narrower type to name.
    _Handler = grpc.RpcMethodHandler[Any, Any]

logger = logging.getLogger(__name__)

MAX_MESSAGE_BYTES = 64 * 1024 * 1024
"""Bound of one message in either direction."""
ERROR_DOMAIN = "furlong"
_OPEN_METHODS = ("/grpc.health.", "/grpc.reflection.")
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
    ) -> None:
        """Binds and starts.

        Raises:
            ConfigError: the address is taken, or open to the network without a token and TLS.
        """
        require_secure_bind(address.rpartition(":")[0], credentials)
        self._names = [service.full_name for service in services]
        self._server = grpc.server(
            ThreadPoolExecutor(max_workers=_NUM_THREADS, thread_name_prefix="grpc"),
            interceptors=[_CallInterceptor(credentials, metrics)],
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


class _CallInterceptor(grpc.ServerInterceptor):
    """Checks the token, maps errors to codes with ErrorInfo, counts and times every call."""

    def __init__(self, credentials: Credentials, metrics: CallMetrics) -> None:
        self._credentials = credentials
        self._metrics = metrics

    def intercept_service(
        self,
        continuation: "Callable[[grpc.HandlerCallDetails], _Handler | None]",
        handler_call_details: grpc.HandlerCallDetails,
    ) -> "_Handler | None":
        handler = continuation(handler_call_details)
        method = handler_call_details.method
        if handler is None or method.startswith(_OPEN_METHODS):
            return handler
        headers = dict(handler_call_details.invocation_metadata)
        if not self._credentials.accepts(str(headers.get(TOKEN_HEADER, ""))):
            return _refusing(handler)
        return _wrap(handler, lambda: _CallScope(method.rpartition("/")[2], self._metrics))


def _refusing(handler: "_Handler") -> "_Handler":
    def refuse(request: object, context: grpc.ServicerContext) -> None:
        context.abort(grpc.StatusCode.UNAUTHENTICATED, "the call carries no valid bearer token")

    factory = (
        grpc.unary_stream_rpc_method_handler if handler.response_streaming else grpc.unary_unary_rpc_method_handler
    )
    return factory(refuse, handler.request_deserializer, handler.response_serializer)


def _wrap(handler: "_Handler", open_scope: "Callable[[], _CallScope]") -> "_Handler":
    if handler.unary_unary:
        inner = handler.unary_unary

        def unary(request: object, context: grpc.ServicerContext) -> object:
            with open_scope().bind(request, context):
                return inner(request, context)

        return grpc.unary_unary_rpc_method_handler(unary, handler.request_deserializer, handler.response_serializer)
    inner_stream = handler.unary_stream
    assert inner_stream, "the protocol has only unary and server-streaming calls"

    def stream(request: object, context: grpc.ServicerContext) -> Iterator[object]:
        with open_scope().bind(request, context):
            yield from inner_stream(request, context)

    return grpc.unary_stream_rpc_method_handler(stream, handler.request_deserializer, handler.response_serializer)


class _CallScope:
    """One call from start to end. A FurlongError becomes its code; any other exception becomes INTERNAL."""

    def __init__(self, method: str, metrics: CallMetrics) -> None:
        self._method = method
        self._metrics = metrics
        self._started = time.monotonic()

    def bind(self, request: object, context: grpc.ServicerContext) -> "_CallScope":
        """Remembers the call, and names it when the caller did not."""
        self._request_id = str(getattr(request, "request_id", "")) or uuid.uuid4().hex[:12]
        self._context = context
        return self

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        code = self._context.code() or grpc.StatusCode.OK  # type: ignore[attr-defined]  # missing in the stubs
        if isinstance(error, FurlongError):
            code = error.code
        elif isinstance(error, Exception) and code == grpc.StatusCode.OK:
            code = grpc.StatusCode.INTERNAL
        self._metrics.observe(method=self._method, code=code.name, seconds=time.monotonic() - self._started)
        fields = {"method": self._method, "request_id": self._request_id, "code": code.name}
        if isinstance(error, FurlongError):
            logger.warning("call failed", extra={**fields, "reason": error.reason, "detail": str(error)})
            self._context.abort_with_status(rpc_status.to_status(error_status(error, request_id=self._request_id)))
        elif code == grpc.StatusCode.INTERNAL:
            logger.error("call failed", extra=fields, exc_info=error)
            self._context.abort(code, f"{self._method} met an unexpected error; see the service's log")


def error_status(error: FurlongError, *, request_id: str) -> status_pb2.Status:
    """The error as a canonical status with ErrorInfo, and RetryInfo when a later try may succeed."""
    details = [any_pb2.Any()]
    details[0].Pack(
        error_details_pb2.ErrorInfo(reason=error.reason, domain=ERROR_DOMAIN, metadata={"request_id": request_id})
    )
    if isinstance(error, OverloadedError):
        retry = error_details_pb2.RetryInfo()
        retry.retry_delay.FromMilliseconds(int(error.retry_after_seconds * 1000))
        details.append(any_pb2.Any())
        details[1].Pack(retry)
    return status_pb2.Status(code=error.code.value[0], message=str(error), details=details)
