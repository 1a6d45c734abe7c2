"""The server every service runs: error mapping, health, reflection, tokens, metrics, bounded binds."""

from collections.abc import Iterator

import grpc
import pytest
from furlong.reward.v1 import reward_pb2, reward_pb2_grpc
from google.rpc import error_details_pb2
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase
from grpc_status import rpc_status
from prometheus_client import CollectorRegistry

from services.common.channels import call, open_channel, wait_for_health
from services.common.errors import ConfigError, DeadlineError, FurlongError, OverloadedError, StateConflictError
from services.common.security import NO_CREDENTIALS, Credentials
from services.common.server import ServedService, Server
from services.common.telemetry import CallMetrics

NAME = "furlong.reward.v1.RewardService"


class ScriptedReward(reward_pb2_grpc.RewardServiceServicer):
    """Fails as the grader field says."""

    def ScoreBatch(self, request: reward_pb2.ScoreBatchRequest, context: grpc.ServicerContext):
        if request.grader == "conflict":
            raise StateConflictError("seen a, wanted b; do c first")
        if request.grader == "overload":
            raise OverloadedError("9 of 9 workers are busy; try later", retry_after_seconds=2.5)
        if request.grader == "bug":
            raise ZeroDivisionError("secret detail")
        return reward_pb2.ScoreBatchResponse(scores=[reward_pb2.Score(sample_id=request.request_id, value=1)])

    def ScoreStream(self, request_iterator: Iterator[reward_pb2.ScoreStreamRequest], context: grpc.ServicerContext):
        for index, request in enumerate(request_iterator):
            if request.item.grader == "conflict":
                raise StateConflictError("seen a, wanted b; do c first")
            yield reward_pb2.ScoreStreamResponse(index=index)


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture
def server(registry: CollectorRegistry) -> Iterator[Server]:
    served = ServedService(
        full_name=NAME,
        add_to=lambda server: reward_pb2_grpc.add_RewardServiceServicer_to_server(ScriptedReward(), server),
    )
    server = Server(
        [served], address="127.0.0.1:0", credentials=NO_CREDENTIALS, metrics=CallMetrics("reward", registry)
    )
    yield server
    server.stop(grace_seconds=0)


@pytest.fixture
def channel(server: Server) -> Iterator[grpc.Channel]:
    with open_channel(f"127.0.0.1:{server.port}", NO_CREDENTIALS) as channel:
        yield channel


def score(channel: grpc.Channel, grader: str) -> reward_pb2.ScoreBatchResponse:
    stub = reward_pb2_grpc.RewardServiceStub(channel)
    request = reward_pb2.ScoreBatchRequest(request_id="r1", grader=grader)
    return call(lambda: stub.ScoreBatch(request, timeout=5), peer="reward")


def test_a_reply_passes_unchanged(channel: grpc.Channel) -> None:
    assert score(channel, "").scores[0].sample_id == "r1"


def test_our_error_arrives_as_its_own_class_with_its_message(channel: grpc.Channel) -> None:
    with pytest.raises(StateConflictError, match="seen a, wanted b; do c first"):
        score(channel, "conflict")


def test_an_error_carries_reason_domain_and_request_id(channel: grpc.Channel) -> None:
    stub = reward_pb2_grpc.RewardServiceStub(channel)
    with pytest.raises(grpc.RpcError) as caught:
        stub.ScoreBatch(reward_pb2.ScoreBatchRequest(request_id="r1", grader="conflict"), timeout=5)
    assert caught.value.code() == grpc.StatusCode.FAILED_PRECONDITION
    info = error_details_pb2.ErrorInfo()
    assert rpc_status.from_call(caught.value).details[0].Unpack(info)
    assert (info.reason, info.domain, dict(info.metadata)) == ("STATE_CONFLICT", "furlong", {"request_id": "r1"})


def test_overload_carries_a_retry_hint(channel: grpc.Channel) -> None:
    stub = reward_pb2_grpc.RewardServiceStub(channel)
    with pytest.raises(grpc.RpcError) as caught:
        stub.ScoreBatch(reward_pb2.ScoreBatchRequest(grader="overload"), timeout=5)
    retry = error_details_pb2.RetryInfo()
    assert rpc_status.from_call(caught.value).details[1].Unpack(retry)
    assert retry.retry_delay.ToMilliseconds() == 2500
    with pytest.raises(OverloadedError) as overloaded:
        score(channel, "overload")
    assert overloaded.value.retry_after_seconds == 2.5


def test_an_unexpected_error_tells_the_caller_nothing_of_its_inside(channel: grpc.Channel) -> None:
    with pytest.raises(FurlongError, match="INTERNAL") as caught:
        score(channel, "bug")
    assert "secret" not in str(caught.value)


def test_a_stream_both_ways_passes_and_maps_its_error(channel: grpc.Channel, registry: CollectorRegistry) -> None:
    stub = reward_pb2_grpc.RewardServiceStub(channel)
    requests = [reward_pb2.ScoreStreamRequest() for _ in range(3)]
    assert [reply.index for reply in stub.ScoreStream(iter(requests), timeout=5)] == [0, 1, 2]
    requests[2].item.grader = "conflict"
    replies = stub.ScoreStream(iter(requests), timeout=5)
    assert [next(replies).index, next(replies).index] == [0, 1]
    with pytest.raises(StateConflictError, match="do c first"):
        call(lambda: next(replies), peer="reward")
    labels = {"method": "ScoreStream"}
    assert registry.get_sample_value("reward_calls_total", {**labels, "code": "OK"}) == 1
    assert registry.get_sample_value("reward_calls_total", {**labels, "code": "FAILED_PRECONDITION"}) == 1


def test_calls_are_counted_by_method_and_code(channel: grpc.Channel, registry: CollectorRegistry) -> None:
    score(channel, "")
    with pytest.raises(StateConflictError):
        score(channel, "conflict")
    labels = {"method": "ScoreBatch"}
    assert registry.get_sample_value("reward_calls_total", {**labels, "code": "OK"}) == 1
    assert registry.get_sample_value("reward_calls_total", {**labels, "code": "FAILED_PRECONDITION"}) == 1
    assert registry.get_sample_value("reward_call_seconds_count", labels) == 2


def test_health_is_not_serving_until_set(server: Server, channel: grpc.Channel) -> None:
    with pytest.raises(DeadlineError, match="reward is NOT_SERVING after 0 s; wanted SERVING"):
        wait_for_health(channel, peer="reward", timeout_seconds=0.3)
    server.set_serving()
    wait_for_health(channel, peer="reward", timeout_seconds=5)


def test_reflection_names_the_service(channel: grpc.Channel) -> None:
    names = ProtoReflectionDescriptorDatabase(channel).get_services()
    assert set(names) == {NAME, "grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection"}


def test_a_taken_port_is_a_config_error(server: Server) -> None:
    with pytest.raises(ConfigError, match=f"127.0.0.1:{server.port} cannot be bound"):
        Server(
            [],
            address=f"127.0.0.1:{server.port}",
            credentials=NO_CREDENTIALS,
            metrics=CallMetrics("reward", CollectorRegistry()),
        )


def test_a_port_open_to_the_network_needs_a_token_and_tls() -> None:
    token_only = Credentials(token="t", certificate=b"", key=b"", authority=b"")
    for credentials in (NO_CREDENTIALS, token_only):
        with pytest.raises(ConfigError, match=r"host 0\.0\.0\.0 is reachable from the network"):
            Server(
                [],
                address="0.0.0.0:0",
                credentials=credentials,
                metrics=CallMetrics("reward", CollectorRegistry()),
            )


def test_a_wrong_token_is_refused_and_never_shown() -> None:
    secret = Credentials(token="opensesame", certificate=b"", key=b"", authority=b"")
    served = ServedService(
        full_name=NAME,
        add_to=lambda server: reward_pb2_grpc.add_RewardServiceServicer_to_server(ScriptedReward(), server),
    )
    server = Server(
        [served], address="127.0.0.1:0", credentials=secret, metrics=CallMetrics("reward", CollectorRegistry())
    )
    with open_channel(f"127.0.0.1:{server.port}", NO_CREDENTIALS) as channel:
        stub = reward_pb2_grpc.RewardServiceStub(channel)
        with pytest.raises(grpc.RpcError) as caught:
            stub.ScoreBatch(reward_pb2.ScoreBatchRequest(), timeout=5)
        assert caught.value.code() == grpc.StatusCode.UNAUTHENTICATED
        with pytest.raises(grpc.RpcError) as caught:
            list(stub.ScoreStream(iter([reward_pb2.ScoreStreamRequest()]), timeout=5))
        assert caught.value.code() == grpc.StatusCode.UNAUTHENTICATED
        header = (("authorization", "Bearer opensesame"),)
        assert stub.ScoreBatch(reward_pb2.ScoreBatchRequest(), timeout=5, metadata=header).scores
    server.stop(grace_seconds=0)
    assert "opensesame" not in repr(secret)
