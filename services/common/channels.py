"""Channels to the services: bounded messages, tokens, and replies turned back into our errors."""

import time
from collections.abc import Callable
from typing import TypeVar

import grpc
from google.rpc import error_details_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_status import rpc_status

from services.common.errors import (
    ERROR_CLASSES,
    AbortedError,
    DeadlineError,
    FurlongError,
    InvalidInputError,
    OverloadedError,
    UnavailableError,
)
from services.common.security import Credentials
from services.common.server import ERROR_DOMAIN, MAX_MESSAGE_BYTES

Reply = TypeVar("Reply")
_CLASS_BY_REASON = {cls.reason: cls for cls in ERROR_CLASSES}
_CLASS_BY_CODE: dict[grpc.StatusCode, type[FurlongError]] = {
    grpc.StatusCode.UNAVAILABLE: UnavailableError,
    grpc.StatusCode.DEADLINE_EXCEEDED: DeadlineError,
    grpc.StatusCode.CANCELLED: AbortedError,
    grpc.StatusCode.INVALID_ARGUMENT: InvalidInputError,
    grpc.StatusCode.RESOURCE_EXHAUSTED: OverloadedError,
}
_HEALTH_POLL_SECONDS = 0.2


def open_channel(address: str, credentials: Credentials) -> grpc.Channel:
    """A channel that connects when it is first used."""
    options = [
        ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
        ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ]
    secure = credentials.channel
    return grpc.secure_channel(address, secure, options) if secure else grpc.insecure_channel(address, options)


def call(invoke: Callable[[], Reply], *, peer: str) -> Reply:
    """The reply of one call; its failure as the error class the peer raised.

    Args:
        invoke: makes the call with its deadline, such as `lambda: stub.ScoreBatch(request, timeout=30)`.
        peer: who is called, for the message.

    Raises:
        FurlongError: the class named by the peer's ErrorInfo, or by the code when there is none.
    """
    try:
        return invoke()
    except grpc.RpcError as error:
        raise error_of_rpc(error, peer=peer) from error


def error_of_rpc(error: grpc.RpcError, *, peer: str) -> FurlongError:
    """The failed call as one of our errors."""
    assert isinstance(error, grpc.Call)
    details = error.details() or error.code().name
    status = rpc_status.from_call(error)
    for detail in status.details if status else []:
        info = error_details_pb2.ErrorInfo()
        if detail.Unpack(info) and info.domain == ERROR_DOMAIN and info.reason in _CLASS_BY_REASON:
            return _CLASS_BY_REASON[info.reason](details)
    return _CLASS_BY_CODE.get(error.code(), FurlongError)(f"{peer}: {error.code().name}: {details}")


def wait_for_health(channel: grpc.Channel, *, peer: str, timeout_seconds: float) -> None:
    """Returns when the peer reports SERVING.

    Raises:
        DeadlineError: it did not in time.
    """
    stub = health_pb2_grpc.HealthStub(channel)
    deadline = time.monotonic() + timeout_seconds
    seen = "no answer"
    while time.monotonic() < deadline:
        try:
            reply = stub.Check(  # type: ignore[attr-defined]  # missing in the stubs
                health_pb2.HealthCheckRequest(), timeout=2.0
            )
            if reply.status == health_pb2.HealthCheckResponse.SERVING:
                return
            seen = health_pb2.HealthCheckResponse.ServingStatus.Name(reply.status)
        except grpc.RpcError as error:
            seen = str(error_of_rpc(error, peer=peer))
        time.sleep(_HEALTH_POLL_SECONDS)
    raise DeadlineError(f"{peer} is {seen} after {timeout_seconds:.0f} s; wanted SERVING; see its log")
