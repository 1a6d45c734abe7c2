"""ReceiverService over gRPC: hosted by a rollout service, it moves versions from the wire into the engine."""

import threading
from collections.abc import Sequence
from typing import Protocol

import grpc
from furlong.weights.v1 import receiver_pb2, receiver_pb2_grpc

from services.common.errors import DeadlineError, StateConflictError, TransferError, UnavailableError
from services.common.records import PolicyVersion
from services.common.server import ServedService
from services.weights.conversions import required_version, transfer_from_proto
from services.weights.receiver import Receiver
from services.weights.transfer import StagedRank


class EngineCommitter(Protocol):
    """Makes staged bytes live in an engine."""

    def commit(self, version: PolicyVersion, staged: Sequence[StagedRank]) -> tuple[float, bool]:
        """Blocks until done; pause seconds, and whether the live parameters have the trainer's digests.

        Raises:
            FurlongError: the version is not live.
        """
        ...


class ReceiverServicer(receiver_pb2_grpc.ReceiverServiceServicer):
    """Maps calls to the receiver and the engine. A version is committed once: a repeated commit changes nothing."""

    def __init__(self, receiver: Receiver, committer: EngineCommitter) -> None:
        self._receiver = receiver
        self._committer = committer
        self._committing = threading.Lock()
        self._live: PolicyVersion | None = None
        self._are_digests_equal = False

    def PrepareVersion(
        self, request: receiver_pb2.PrepareVersionRequest, context: grpc.ServicerContext
    ) -> receiver_pb2.PrepareVersionResponse:
        """Fetches into staging and verifies."""
        version = required_version(request.version)
        if self._committing.locked():
            raise StateConflictError(
                f"a commit is running, version {version} cannot be staged; prepare it again after it"
            )
        transfers = [transfer_from_proto(rank) for rank in request.ranks]
        try:
            figures = self._receiver.prepare(version, transfers)
        except (UnavailableError, DeadlineError) as error:
            # These codes tell the caller that this engine is gone; here it is the source.
            raise TransferError(str(error)) from error
        return receiver_pb2.PrepareVersionResponse(num_bytes=figures.num_bytes, seconds=figures.seconds)

    def CommitVersion(
        self, request: receiver_pb2.CommitVersionRequest, context: grpc.ServicerContext
    ) -> receiver_pb2.CommitVersionResponse:
        """Makes the staged version live."""
        version = required_version(request.version)
        with self._committing:
            if version == self._live and not self._receiver.is_staged(version):
                return receiver_pb2.CommitVersionResponse(pause_seconds=0.0, are_digests_equal=self._are_digests_equal)
            staged = self._receiver.staged(version)
            self._live = None
            pause_seconds, are_digests_equal = self._committer.commit(version, staged)
            self._live, self._are_digests_equal = version, are_digests_equal
            self._receiver.abort(version)
        return receiver_pb2.CommitVersionResponse(pause_seconds=pause_seconds, are_digests_equal=are_digests_equal)

    def AbortVersion(
        self, request: receiver_pb2.AbortVersionRequest, context: grpc.ServicerContext
    ) -> receiver_pb2.AbortVersionResponse:
        """Forgets the staged version."""
        self._receiver.abort(required_version(request.version))
        return receiver_pb2.AbortVersionResponse()


def receiver_service(receiver: Receiver, committer: EngineCommitter) -> ServedService:
    """The service, to be added to a server."""
    servicer = ReceiverServicer(receiver, committer)
    return ServedService(
        full_name="furlong.weights.v1.ReceiverService",
        add_to=lambda server: receiver_pb2_grpc.add_ReceiverServiceServicer_to_server(servicer, server),
    )
