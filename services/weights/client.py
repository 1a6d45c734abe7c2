"""The typed client of WeightsService, for trainer and rollout."""

import uuid
from collections.abc import Sequence

from furlong.weights.v1 import weights_pb2, weights_pb2_grpc

from services.common.channels import call, open_channel, wait_for_health
from services.common.conversions import version_from_proto, version_to_proto
from services.common.records import PolicyVersion
from services.common.security import Credentials
from services.weights.conversions import (
    engine_record_from_proto,
    layout_to_proto,
    outcome_from_proto,
    source_buffer_to_proto,
    source_rank_offer_to_proto,
    source_rank_plan_from_proto,
    version_record_from_proto,
)
from services.weights.published import EngineRecord, PublishOutcome, TransferPlan, VersionRecord
from services.weights.transfer import EngineRankLayout, SourceBuffer, SourceRankOffer

_LIST_SECONDS = 10.0


class WeightsClient:
    """The weights service. Every call has a deadline; a failure is the error class that the service raised."""

    def __init__(self, address: str, credentials: Credentials, *, phase_timeout_seconds: float) -> None:
        """Connects when it is first used."""
        self._peer = f"weights service {address}"
        # A call may wait for a publication (prepare, abort or commit) before its own begins.
        self._deadline_seconds = 6 * phase_timeout_seconds + 30.0
        self._channel = open_channel(address, credentials)
        self._stub = weights_pb2_grpc.WeightsServiceStub(self._channel)

    def wait_until_serving(self, timeout_seconds: float) -> None:
        """Returns when the service reports SERVING.

        Raises:
            DeadlineError: it did not in time.
        """
        wait_for_health(self._channel, peer=self._peer, timeout_seconds=timeout_seconds)

    def register_engine(
        self, engine_id: str, receiver_address: str, layouts: Sequence[EngineRankLayout]
    ) -> PolicyVersion | None:
        """Offers an engine whose receiver already listens; the version it then serves, None when it waits for one."""
        request = weights_pb2.RegisterEngineRequest(
            request_id=uuid.uuid4().hex,
            engine_id=engine_id,
            receiver_address=receiver_address,
            ranks=[layout_to_proto(layout) for layout in layouts],
        )
        reply = call(lambda: self._stub.RegisterEngine(request, timeout=self._deadline_seconds), peer=self._peer)
        return version_from_proto(reply.version)

    def plan_transfer(self, offers: Sequence[SourceRankOffer]) -> TransferPlan:
        """The plan for the engines registered now.

        Raises:
            StateConflictError: no engine takes part.
            InvalidInputError: the offers lack what an engine needs.
        """
        request = weights_pb2.PlanTransferRequest(
            request_id=uuid.uuid4().hex, ranks=[source_rank_offer_to_proto(offer) for offer in offers]
        )
        reply = call(lambda: self._stub.PlanTransfer(request, timeout=self._deadline_seconds), peer=self._peer)
        ranks = tuple(source_rank_plan_from_proto(rank) for rank in reply.ranks)
        return TransferPlan(plan_id=reply.plan_id, ranks=ranks)

    def publish_version(
        self, *, request_id: str, version: PolicyVersion, plan_id: str, buffers: Sequence[SourceBuffer]
    ) -> PublishOutcome:
        """The outcome of the two-phase commit; an aborted version is an outcome, not an error.

        Raises:
            StateConflictError: the plan is out of date (plan again), or the step is not above the last committed one.
        """
        request = weights_pb2.PublishVersionRequest(
            request_id=request_id,
            version=version_to_proto(version),
            plan_id=plan_id,
            buffers=[source_buffer_to_proto(buffer) for buffer in buffers],
        )
        reply = call(lambda: self._stub.PublishVersion(request, timeout=self._deadline_seconds), peer=self._peer)
        return outcome_from_proto(reply)

    def list_versions(self, run_id: str = "") -> tuple[VersionRecord, ...]:
        """The versions of a run, or of all runs, oldest first."""
        request = weights_pb2.ListVersionsRequest(run_id=run_id)
        reply = call(lambda: self._stub.ListVersions(request, timeout=_LIST_SECONDS), peer=self._peer)
        return tuple(version_record_from_proto(record) for record in reply.versions)

    def list_engines(self) -> tuple[EngineRecord, ...]:
        """Every engine's standing, in order of id."""
        request = weights_pb2.ListEnginesRequest()
        reply = call(lambda: self._stub.ListEngines(request, timeout=_LIST_SECONDS), peer=self._peer)
        return tuple(engine_record_from_proto(record) for record in reply.engines)

    def close(self) -> None:
        """Ends the connection."""
        self._channel.close()
