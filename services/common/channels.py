"""Channels to the services: bounded messages, tokens, and replies turned back into our errors."""

import json
import socket
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

import grpc
from google.rpc import error_details_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_status import rpc_status

from services.common.call_interceptor import ERROR_DOMAIN
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
from services.common.server import MAX_MESSAGE_BYTES

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
    return _open(address, credentials, [])


def open_balanced_channel(addresses: Sequence[str], credentials: Credentials, *, service: str) -> grpc.Channel:
    """A channel to all replicas of a service: calls go round in turns, past replicas that cannot be reached.

    A call that finds its replica gone is made again on the next, so its methods must bear being called twice.

    Args:
        addresses: host:port of every replica; a single host name may stand for several hosts in DNS. With TLS, the
            certificates of all replicas carry the first host's name.
        service: full name of the service, such as "furlong.reward.v1.RewardService".

    Raises:
        UnavailableError: a host name cannot be resolved.
    """
    retry = {
        "maxAttempts": 5,
        "initialBackoff": "0.1s",
        "maxBackoff": "2s",
        "backoffMultiplier": 2,
        "retryableStatusCodes": ["UNAVAILABLE"],
    }
    config = {
        "loadBalancingConfig": [{"round_robin": {}}],
        "methodConfig": [{"name": [{"service": service}], "retryPolicy": retry}],
    }
    options: list[tuple[str, str | int]] = [
        ("grpc.service_config", json.dumps(config)),
        # A call larger than this buffer would not be made again.
        ("grpc.per_rpc_retry_buffer_size", MAX_MESSAGE_BYTES),
    ]
    if len(addresses) == 1:
        return _open(addresses[0], credentials, options)
    options.append(("grpc.default_authority", addresses[0].rpartition(":")[0]))
    return _open("ipv4:" + ",".join(_numeric(address) for address in addresses), credentials, options)


def _open(target: str, credentials: Credentials, more_options: Sequence[tuple[str, str | int]]) -> grpc.Channel:
    options = [
        ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
        ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
        *more_options,
    ]
    secure = credentials.channel
    return grpc.secure_channel(target, secure, options) if secure else grpc.insecure_channel(target, options)


def _numeric(address: str) -> str:
    host, _, port = address.rpartition(":")
    try:
        return f"{socket.gethostbyname(host)}:{port}"
    except OSError as error:
        raise UnavailableError(f"host {host!r} cannot be resolved ({error}); check the address {address}") from error


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
    text = error.details() or error.code().name
    info, retry, reason = error_details_pb2.ErrorInfo(), error_details_pb2.RetryInfo(), ""
    status = rpc_status.from_call(error)
    for detail in status.details if status else []:
        if detail.Unpack(info) and info.domain == ERROR_DOMAIN:
            reason = info.reason
        detail.Unpack(retry)
    if reason == OverloadedError.reason:
        return OverloadedError(text, retry_after_seconds=retry.retry_delay.ToMilliseconds() / 1000)
    if reason in _CLASS_BY_REASON:
        return _CLASS_BY_REASON[reason](text)
    return _CLASS_BY_CODE.get(error.code(), FurlongError)(f"{peer}: {error.code().name}: {text}")


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
