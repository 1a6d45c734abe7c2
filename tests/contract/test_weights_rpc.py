"""Every call of WeightsService and ReceiverService over real servers, with bytes moving from senders to engines."""

import uuid
from collections.abc import Iterator
from dataclasses import dataclass

import grpc
import pytest
import torch
from furlong.common.v1 import sample_pb2
from furlong.weights.v1 import receiver_pb2, receiver_pb2_grpc, weights_pb2, weights_pb2_grpc
from prometheus_client import CollectorRegistry

from services.common.channels import call, open_channel
from services.common.errors import InvalidInputError, StateConflictError, UnavailableError
from services.common.records import PolicyVersion
from services.common.security import NO_CREDENTIALS
from services.common.server import Server
from services.common.telemetry import CallMetrics
from services.weights.client import WeightsClient
from services.weights.conversions import layout_from_proto, layout_to_proto, transfer_from_proto, transfer_to_proto
from services.weights.coordinator import Coordinator
from services.weights.fake_engine import FakeEngine
from services.weights.metrics import WeightsMetrics
from services.weights.piece_inventory import PieceInventory
from services.weights.plan import make_plan
from services.weights.published import EngineRecord, PublishOutcome, VersionRecord, VersionState
from services.weights.receiver import Receiver
from services.weights.receiver_client import ReceiverClient
from services.weights.receiver_servicer import receiver_service
from services.weights.sender import Sender
from services.weights.servicer import weights_service
from services.weights.transfer import EngineRankLayout, SourceBuffer
from services.weights.transport import open_receiver_transports, open_source_transport
from services.weights.version_store import MemoryVersionStore
from tests.unit.weights import tiny_world as world

OFFERS = world.offers(tp=2, dp=2)


def version(step: int) -> PolicyVersion:
    return PolicyVersion(run_id="r", step=step)


@dataclass
class HostedEngine:
    """An engine as a rollout service hosts it."""

    name: str
    layouts: list[EngineRankLayout]
    receiver: Receiver
    engine: FakeEngine
    server: Server

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server.port}"

    def stop(self) -> None:
        self.server.stop(grace_seconds=0)
        self.receiver.close()

    def holds(self, tensors: dict[str, torch.Tensor]) -> bool:
        """Every parameter is bit-equal to the slow reference."""
        return all(
            torch.equal(self.engine.parameters[key], value)
            for layout in self.layouts
            for key, value in world.expected(layout, tensors).items()
        )


class Cluster:
    """A weights service, trainer ranks with senders, and engines."""

    def __init__(self, transport: str) -> None:
        self.run_id = f"test-{uuid.uuid4().hex[:8]}"
        self.coordinator = Coordinator(
            store=MemoryVersionStore(),
            connect=lambda address: ReceiverClient(address, NO_CREDENTIALS, timeout_seconds=5.0),
            metrics=WeightsMetrics(CollectorRegistry()),
            bucket_bytes=256,
            phase_timeout_seconds=5.0,
        )
        self.server = serve(weights_service(self.coordinator))
        self.address = f"127.0.0.1:{self.server.port}"
        self.client = WeightsClient(self.address, NO_CREDENTIALS, phase_timeout_seconds=5.0)
        self.senders = [
            Sender(
                rank=offer.rank,
                transport=open_source_transport(
                    transport,
                    run_id=self.run_id,
                    host="127.0.0.1",
                    credentials=NO_CREDENTIALS,
                    idle_timeout_seconds=5.0,
                ),
            )
            for offer in OFFERS
        ]
        self.engines: dict[str, HostedEngine] = {}

    def host(self, name: str, tp: int = 1) -> HostedEngine:
        """A new engine, not registered yet."""
        layouts = world.layouts(tp)
        receiver = Receiver(
            run_id=self.run_id,
            engine_id=name,
            layouts=layouts,
            transports=open_receiver_transports(NO_CREDENTIALS),
            timeout_seconds=4.0,
        )
        engine = FakeEngine(layouts)
        server = serve(receiver_service(receiver, engine))
        hosted = HostedEngine(name=name, layouts=layouts, receiver=receiver, engine=engine, server=server)
        self.engines[name] = hosted
        return hosted

    def register(self, name: str, tp: int = 1) -> PolicyVersion | None:
        hosted = self.host(name, tp)
        return self.client.register_engine(name, hosted.address, hosted.layouts)

    def publish(self, step: int, *, corrupt: bool = False) -> PublishOutcome:
        tensors = world.hub_tensors(seed=step)
        plan = self.client.plan_transfer(OFFERS)
        buffers = [
            sender.fill(rank, world.owned(offer, tensors))
            for sender, rank, offer in zip(self.senders, plan.ranks, OFFERS, strict=True)
        ]
        if corrupt:
            self.senders[0].fill(plan.ranks[0], world.owned(OFFERS[0], world.hub_tensors(seed=99)))
        outcome = self.client.publish_version(
            request_id=uuid.uuid4().hex, version=version(step), plan_id=plan.plan_id, buffers=buffers
        )
        if outcome.is_committed:
            for sender in self.senders:
                sender.keep()
        return outcome

    def close(self) -> None:
        self.client.close()
        self.server.stop(grace_seconds=0)
        self.coordinator.close()
        for sender in self.senders:
            sender.close()
        for engine in self.engines.values():
            engine.stop()


def serve(service) -> Server:
    return Server(
        [service],
        address="127.0.0.1:0",
        credentials=NO_CREDENTIALS,
        metrics=CallMetrics("weights", CollectorRegistry()),
    )


@pytest.fixture(params=["shm", "tcp"])
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    cluster = Cluster(request.param)
    yield cluster
    cluster.close()


def test_versions_reach_every_engine_bit_for_bit(cluster: Cluster):
    assert cluster.register("rollout-0") is None
    assert cluster.register("rollout-1", tp=2) is None
    for step in range(4):
        outcome = cluster.publish(step)
        assert (outcome.state, outcome.reason) == (VersionState.COMMITTED, "")
        assert [engine.engine_id for engine in outcome.engines] == ["rollout-0", "rollout-1"]
        assert all(engine.are_digests_equal and not engine.error for engine in outcome.engines)
        assert all(engine.holds(world.hub_tensors(seed=step)) for engine in cluster.engines.values())
    assert cluster.client.list_versions("r") == tuple(
        VersionRecord(version=version(step), state=VersionState.COMMITTED, reason="") for step in range(4)
    )
    assert cluster.client.list_versions("other") == ()
    assert cluster.client.list_engines() == tuple(
        EngineRecord(
            engine_id=name,
            receiver_address=cluster.engines[name].address,
            version=version(3),
            is_quarantined=False,
        )
        for name in ("rollout-0", "rollout-1")
    )


def test_engine_that_joins_later_holds_the_committed_version_when_registration_returns(cluster: Cluster):
    cluster.register("rollout-0")
    cluster.publish(1)
    assert cluster.register("rollout-1") == version(1)
    assert cluster.engines["rollout-1"].engine.version == version(1)
    assert cluster.engines["rollout-1"].holds(world.hub_tensors(seed=1))


def test_dead_engine_aborts_the_version_and_rejoins_with_the_committed_one(cluster: Cluster):
    for name in ("rollout-0", "rollout-1", "rollout-2"):
        cluster.register(name)
    cluster.publish(1)
    cluster.engines["rollout-1"].stop()
    outcome = cluster.publish(2)
    assert outcome.state is VersionState.ABORTED
    assert outcome.reason.startswith("rollout-1: engine receiver 127.0.0.1:")
    assert [engine.is_quarantined for engine in cluster.client.list_engines()] == [False, True, False]
    for name in ("rollout-0", "rollout-2"):
        assert cluster.engines[name].engine.version == version(1)
        assert cluster.engines[name].holds(world.hub_tensors(seed=1))
    assert cluster.publish(2).is_committed
    assert cluster.register("rollout-1") == version(2)
    assert cluster.engines["rollout-1"].holds(world.hub_tensors(seed=2))


def test_corrupted_buffer_aborts_and_every_engine_keeps_its_weights(cluster: Cluster):
    for name in ("rollout-0", "rollout-1"):
        cluster.register(name)
    cluster.publish(1)
    outcome = cluster.publish(2, corrupt=True)
    assert outcome.state is VersionState.ABORTED
    assert all("has digest" in engine.error for engine in outcome.engines)
    assert all(engine.holds(world.hub_tensors(seed=1)) for engine in cluster.engines.values())
    assert not any(engine.is_quarantined for engine in cluster.client.list_engines())
    assert cluster.publish(2).is_committed


def test_dead_trainer_is_told_as_such_and_quarantines_no_engine(cluster: Cluster):
    cluster.register("rollout-0")
    plan = cluster.client.plan_transfer(OFFERS)
    tensors = world.hub_tensors()
    buffers = [
        sender.fill(rank, world.owned(offer, tensors))
        for sender, rank, offer in zip(cluster.senders, plan.ranks, OFFERS, strict=True)
    ]
    for sender in cluster.senders:
        sender.close()
    outcome = cluster.client.publish_version(request_id="1", version=version(1), plan_id=plan.plan_id, buffers=buffers)
    assert outcome.state is VersionState.ABORTED
    assert [engine.is_quarantined for engine in cluster.client.list_engines()] == [False]


def test_errors_arrive_as_the_classes_that_were_raised(cluster: Cluster):
    with pytest.raises(StateConflictError, match="0 engines take part"):
        cluster.client.plan_transfer(OFFERS)
    with pytest.raises(InvalidInputError, match="offers 0 ranks"):
        cluster.client.register_engine("rollout-0", "127.0.0.1:1", [])
    cluster.register("rollout-0")
    with pytest.raises(InvalidInputError, match="offered by no trainer rank"):
        cluster.client.plan_transfer(OFFERS[:1])
    cluster.publish(3)
    with pytest.raises(StateConflictError, match="publish step 4 or later"):
        cluster.publish(3)
    with pytest.raises(StateConflictError, match="call PlanTransfer again"):
        cluster.client.publish_version(request_id="1", version=version(4), plan_id="old", buffers=[])
    with pytest.raises(InvalidInputError, match="request_id is empty"):
        cluster.client.publish_version(request_id="", version=version(4), plan_id="old", buffers=[])


def test_publication_without_a_version_is_invalid(cluster: Cluster):
    with open_channel(cluster.address, NO_CREDENTIALS) as channel:
        stub = weights_pb2_grpc.WeightsServiceStub(channel)
        with pytest.raises(grpc.RpcError) as caught:
            stub.PublishVersion(weights_pb2.PublishVersionRequest(request_id="1"), timeout=5.0)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


def test_unreachable_service_is_unavailable():
    client = WeightsClient("127.0.0.1:1", NO_CREDENTIALS, phase_timeout_seconds=0.1)
    with pytest.raises(UnavailableError, match=r"weights service 127\.0\.0\.1:1"):
        client.list_engines()
    client.close()


def test_receiver_commits_once_and_only_what_it_prepared(cluster: Cluster):
    hosted = cluster.host("rollout-0")
    receiver = ReceiverClient(hosted.address, NO_CREDENTIALS, timeout_seconds=5.0)
    with pytest.raises(StateConflictError, match="has nothing staged, wanted version r@1; prepare it first"):
        receiver.commit(version(1))
    receiver.abort(version(1))
    cluster.client.register_engine("rollout-0", hosted.address, hosted.layouts)
    cluster.publish(1)
    assert hosted.engine.num_commits == 1
    again = receiver.commit(version(1))
    assert (again.pause_seconds, again.are_digests_equal) == (0.0, True)
    assert hosted.engine.num_commits == 1
    receiver.close()


def test_receiver_refuses_a_version_without_run_and_ranks_it_does_not_have(cluster: Cluster):
    hosted = cluster.host("rollout-0")
    with open_channel(hosted.address, NO_CREDENTIALS) as channel:
        stub = receiver_pb2_grpc.ReceiverServiceStub(channel)
        with pytest.raises(InvalidInputError, match="empty run id"):
            call(lambda: stub.AbortVersion(receiver_pb2.AbortVersionRequest(), timeout=5.0), peer="receiver")
        request = receiver_pb2.PrepareVersionRequest(version=sample_pb2.PolicyVersion(run_id="r", step=1))
        with pytest.raises(InvalidInputError, match=r"transfers are for ranks \[\]"):
            call(lambda: stub.PrepareVersion(request, timeout=5.0), peer="receiver")


def test_engine_waits_for_the_next_version_when_the_trainer_is_gone(cluster: Cluster):
    cluster.register("rollout-0")
    cluster.publish(1)
    for sender in cluster.senders:
        sender.close()
    late = cluster.host("rollout-1")
    assert cluster.client.register_engine("rollout-1", late.address, late.layouts) is None
    assert late.engine.num_commits == 0


def test_layouts_and_transfers_survive_the_wire():
    layouts = world.layouts(2, "bfloat16")
    assert [layout_from_proto(layout_to_proto(layout)) for layout in layouts] == layouts
    plan = make_plan(OFFERS, {"e": layouts}, bucket_bytes=256)
    buffers = [
        SourceBuffer(rank=r.rank, transport="tcp", endpoint=f"h:{r.rank}/b", digests=("0" * 16,) * len(r.pieces))
        for r in plan.ranks
    ]
    transfers = PieceInventory(plan, buffers).transfers(plan.engines["e"])
    assert tuple(transfer_from_proto(transfer_to_proto(transfer)) for transfer in transfers) == transfers
