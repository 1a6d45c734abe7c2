"""The weights service's client of an engine's ReceiverService."""

from collections.abc import Sequence

from furlong.weights.v1 import receiver_pb2, receiver_pb2_grpc

from services.common.channels import call, open_channel
from services.common.conversions import version_to_proto
from services.common.records import PolicyVersion
from services.common.security import Credentials
from services.weights.conversions import transfer_to_proto
from services.weights.published import CommitFigures, PrepareFigures
from services.weights.transfer import EngineRankTransfer


class ReceiverClient:
    """One engine's receiver. Every call ends within the timeout."""

    def __init__(self, address: str, credentials: Credentials, *, timeout_seconds: float) -> None:
        self._peer = f"engine receiver {address}"
        self._timeout_seconds = timeout_seconds
        self._channel = open_channel(address, credentials)
        self._stub = receiver_pb2_grpc.ReceiverServiceStub(self._channel)

    def prepare(self, version: PolicyVersion, ranks: Sequence[EngineRankTransfer]) -> PrepareFigures:
        """Has the version fetched into staging and verified."""
        request = receiver_pb2.PrepareVersionRequest(
            request_id=f"prepare-{version}",
            version=version_to_proto(version),
            ranks=[transfer_to_proto(rank) for rank in ranks],
        )
        reply = call(lambda: self._stub.PrepareVersion(request, timeout=self._timeout_seconds), peer=self._peer)
        return PrepareFigures(num_bytes=reply.num_bytes, seconds=reply.seconds)

    def commit(self, version: PolicyVersion) -> CommitFigures:
        """Has the staged version made live."""
        request = receiver_pb2.CommitVersionRequest(request_id=f"commit-{version}", version=version_to_proto(version))
        reply = call(lambda: self._stub.CommitVersion(request, timeout=self._timeout_seconds), peer=self._peer)
        return CommitFigures(pause_seconds=reply.pause_seconds, are_digests_equal=reply.are_digests_equal)

    def abort(self, version: PolicyVersion) -> None:
        """Has the staged version forgotten."""
        request = receiver_pb2.AbortVersionRequest(request_id=f"abort-{version}", version=version_to_proto(version))
        call(lambda: self._stub.AbortVersion(request, timeout=self._timeout_seconds), peer=self._peer)

    def close(self) -> None:
        """Ends the connection."""
        self._channel.close()
