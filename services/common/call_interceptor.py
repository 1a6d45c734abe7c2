"""What happens around every gRPC call of a server: token check, errors to codes, count and time."""

import logging
import time
import uuid
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import grpc
from google.protobuf import any_pb2
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status

from services.common.errors import FurlongError, OverloadedError
from services.common.security import TOKEN_HEADER, Credentials
from services.common.telemetry import CallMetrics

if TYPE_CHECKING:
    from typing import Any

    # The library's own signature is generic in every call; there is no narrower type to name.
    _Handler = grpc.RpcMethodHandler[Any, Any]

logger = logging.getLogger(__name__)

ERROR_DOMAIN = "furlong"
_OPEN_METHODS = ("/grpc.health.", "/grpc.reflection.")


class CallInterceptor(grpc.ServerInterceptor):
    """Checks the token, maps errors to codes with ErrorInfo, counts and times every call."""

    def __init__(self, credentials: Credentials, metrics: CallMetrics) -> None:
        self._credentials = credentials
        self._metrics = metrics

    def intercept_service(
        self,
        continuation: "Callable[[grpc.HandlerCallDetails], _Handler | None]",
        handler_call_details: grpc.HandlerCallDetails,
    ) -> "_Handler | None":
        """The method with the checks around it; health and reflection stay as they are."""
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

    return _like(handler, refuse)


def _wrap(handler: "_Handler", open_scope: "Callable[[], _CallScope]") -> "_Handler":
    if handler.response_streaming:
        inner_stream: Callable[..., Iterator[object]] | None = (
            handler.stream_stream if handler.request_streaming else handler.unary_stream
        )
        assert inner_stream, "a handler has the method that its flags name"

        def stream(request: object, context: grpc.ServicerContext) -> Iterator[object]:
            with open_scope().bind(request, context):
                yield from inner_stream(request, context)

        return _like(handler, stream)
    inner = handler.unary_unary
    assert inner, "the protocol has no calls that stream to the server only"

    def unary(request: object, context: grpc.ServicerContext) -> object:
        with open_scope().bind(request, context):
            return inner(request, context)

    return _like(handler, unary)


def _like(handler: "_Handler", behavior: "Callable[..., Any]") -> "_Handler":
    """The behavior with the handler's kind of call and its messages."""
    factories = {
        (False, False): grpc.unary_unary_rpc_method_handler,
        (False, True): grpc.unary_stream_rpc_method_handler,
        (True, True): grpc.stream_stream_rpc_method_handler,
    }
    factory = factories[handler.request_streaming, handler.response_streaming]
    return factory(behavior, handler.request_deserializer, handler.response_serializer)


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
        elif isinstance(error, GeneratorExit):
            code = grpc.StatusCode.CANCELLED
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
