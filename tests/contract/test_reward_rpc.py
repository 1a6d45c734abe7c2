"""RewardService over real gRPC in this process, with real workers."""

import sys
import threading
import time
from pathlib import Path

import grpc
import pytest
from furlong.reward.v1 import reward_pb2, reward_pb2_grpc
from google.rpc import error_details_pb2
from grpc_status import rpc_status
from prometheus_client import CollectorRegistry

from services.common.channels import call, open_channel, wait_for_health
from services.common.errors import DeadlineError, InvalidInputError
from services.common.security import NO_CREDENTIALS
from services.common.server import Server
from services.common.telemetry import CallMetrics
from services.reward.graders import GraderSettings
from services.reward.metrics import RewardMetrics
from services.reward.servicer import RewardServicer, reward_service
from services.reward.worker_pool import WorkerPool
from services.reward.worker_process import WorkerLimits
from services.reward.worker_template import WORKER_COMMAND
from services.reward.zero_score_watch import ZeroScoreWatch

MISBEHAVING = (
    sys.executable,
    str(Path(__file__).parents[1] / "unit" / "reward" / "misbehaving_worker.py"),
)

RIGHT = {"grader": "boxed", "rule": "numeric", "outcome": "right"}


@pytest.fixture
def registry():
    return CollectorRegistry()


@pytest.fixture
def serve(registry):
    """A function that serves a pool of one worker and gives the stub."""
    opened = []

    def start(command=WORKER_COMMAND, max_pending_items=100, max_calls=30):
        metrics = RewardMetrics(registry)
        pool = WorkerPool(
            num_workers=1,
            settings=GraderSettings(require_single_box=True),
            limits=WorkerLimits(limit_seconds=1.0, memory_bytes=256 * 1024 * 1024),
            max_pending_items=max_pending_items,
            metrics=metrics,
            zero_watch=ZeroScoreWatch(metrics, window_samples=1000),
            command=command,
        )
        servicer = RewardServicer(pool, default_grader="boxed", max_batch_items=8, max_calls=max_calls, metrics=metrics)
        server = Server(
            [reward_service(servicer)],
            address="127.0.0.1:0",
            credentials=NO_CREDENTIALS,
            metrics=CallMetrics("reward", registry),
        )
        server.set_serving()
        channel = open_channel(f"127.0.0.1:{server.port}", NO_CREDENTIALS)
        opened.append((channel, server, pool))
        wait_for_health(channel, peer="reward", timeout_seconds=10)
        return reward_pb2_grpc.RewardServiceStub(channel)

    yield start
    for channel, server, pool in opened:
        channel.close()
        server.stop(grace_seconds=0)
        pool.close()


def request(*responses, label="132", grader=""):
    return reward_pb2.ScoreBatchRequest(
        request_id="r",
        grader=grader,
        items=[
            reward_pb2.ScoreItem(sample_id=f"s{index}", response=response, label=label)
            for index, response in enumerate(responses)
        ],
    )


def score(stub, message, timeout=30):
    return list(call(lambda: stub.ScoreBatch(message, timeout=timeout), peer="reward").scores)


def test_scores_come_back_in_order_with_their_reasons(serve, registry):
    stub = serve()
    scores = score(
        stub,
        request(r"<think>231</think>\boxed{132}<|endoftext|>", "132", r"\boxed{1}", r"\boxed{132}\boxed{132}"),
    )
    assert [(s.sample_id, s.value, s.rule, s.extracted) for s in scores] == [
        ("s0", 1.0, "numeric", "132"),
        ("s1", 0.0, "no_answer", ""),
        ("s2", 0.0, "numeric", "1"),
        ("s3", 0.0, "several_answers", "132"),
    ]
    assert all(0 < s.seconds < 1 and not s.error for s in scores)
    assert registry.get_sample_value("reward_samples_total", RIGHT) == 1
    assert registry.get_sample_value("reward_samples_total", {**RIGHT, "outcome": "wrong"}) == 1
    assert registry.get_sample_value("reward_pending_items") == 0


def test_blank_label_is_a_score_not_an_error(serve):
    [scored] = score(serve(), request(r"\boxed{1}", label=""))
    assert (scored.value, scored.rule) == (0.0, "bad_label")


def test_empty_batch_gives_no_scores(serve):
    assert score(serve(), request()) == []


def test_grader_can_be_named_and_an_unknown_one_is_refused(serve):
    stub = serve()
    assert score(stub, request(r"\boxed{132}", grader="boxed"))[0].value == 1.0
    with pytest.raises(InvalidInputError, match="grader is 'guess'; wanted one of boxed"):
        score(stub, request("x", grader="guess"))


def test_batch_over_the_bound_is_refused(serve):
    with pytest.raises(InvalidInputError, match="the batch has 9 items; at most 8 are wanted"):
        score(serve(), request(*["x"] * 9))


def test_hang_is_a_timeout_score_and_the_rest_of_the_batch_arrives(serve):
    scores = score(serve(MISBEHAVING), request("hang", "abc", "raise", "die", "ab"))
    assert [(s.value, s.rule) for s in scores] == [
        (0.0, "timeout"),
        (3.0, "string"),
        (0.0, "error"),
        (0.0, "error"),
        (2.0, "string"),
    ]
    assert [bool(s.error) for s in scores] == [True, False, True, True, False]


def test_overload_carries_a_retry_hint(serve):
    stub = serve(MISBEHAVING, max_pending_items=3)
    running = stub.ScoreBatch.future(request("sleep 0.8", "ab"), timeout=30)
    time.sleep(0.2)
    with pytest.raises(grpc.RpcError) as caught:
        stub.ScoreBatch(request("a", "b"), timeout=30)
    assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    retry = error_details_pb2.RetryInfo()
    assert any(detail.Unpack(retry) for detail in rpc_status.from_call(caught.value).details)
    assert retry.retry_delay.ToTimedelta().total_seconds() == 1.0
    assert len(running.result().scores) == 2
    assert len(score(stub, request("a", "b"))) == 2


def test_call_that_ends_early_frees_the_worker(serve):
    stub = serve(MISBEHAVING)
    with pytest.raises(DeadlineError):
        score(stub, request(*["sleep 0.9"] * 8), timeout=0.3)
    cancelled = stub.ScoreBatch.future(request(*["sleep 0.9"] * 8), timeout=30)
    threading.Timer(0.2, cancelled.cancel).start()
    with pytest.raises(grpc.FutureCancelledError):
        cancelled.result()
    started = time.monotonic()
    assert score(stub, request("abc"))[0].value == 3.0
    # 16 items would take 14 s; at most the two in hand are waited for.
    assert time.monotonic() - started < 4


def test_concurrent_calls_each_get_their_own_scores(serve):
    stub = serve()
    replies = {}

    def ask(number):
        message = request(r"\boxed{1}", rf"\boxed{{{number}}}", label=str(number))
        replies[number] = [(s.value, s.extracted) for s in score(stub, message)]

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(2, 22)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert replies == {number: [(0.0, "1"), (1.0, str(number))] for number in range(2, 22)}
