"""RewardService over real gRPC in this process, with real workers."""

import subprocess
import threading
import time
from contextlib import ExitStack

import grpc
import pytest
from furlong.reward.v1 import reward_pb2, reward_pb2_grpc
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from services.common.channels import call, open_balanced_channel, open_channel, wait_for_health
from services.common.errors import DeadlineError, InvalidInputError, OverloadedError, UnavailableError
from services.common.security import NO_CREDENTIALS, Credentials
from tests.contract.reward_servers import MISBEHAVING, SERVICE, reward_server

RIGHT = {"grader": "boxed", "rule": "string", "outcome": "right"}


@pytest.fixture
def stack():
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def serve(stack):
    """A function that serves a pool of one worker and gives the stub and the server."""

    def start(command=None, **settings):
        if command:
            settings["command"] = command
        replica = stack.enter_context(reward_server(**settings))
        channel = stack.enter_context(open_channel(replica.address, NO_CREDENTIALS))
        wait_for_health(channel, peer="reward", timeout_seconds=10)
        return reward_pb2_grpc.RewardServiceStub(channel), replica

    return start


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


def test_scores_come_back_in_order_with_their_reasons(serve):
    stub, replica = serve()
    registry = replica.registry
    scores = score(
        stub,
        request(r"<think>231</think>\boxed{132}<|endoftext|>", "132", r"\boxed{1}", r"\boxed{132}\boxed{132}"),
    )
    assert [(s.sample_id, s.value, s.rule, s.extracted) for s in scores] == [
        ("s0", 1.0, "string", "132"),
        ("s1", 0.0, "no_answer", ""),
        ("s2", 0.0, "numeric", "1"),
        ("s3", 0.0, "several_answers", "132"),
    ]
    assert all(0 < s.seconds < 1 and not s.error for s in scores)
    assert registry.get_sample_value("reward_samples_total", RIGHT) == 1
    assert (
        registry.get_sample_value("reward_samples_total", {"grader": "boxed", "rule": "numeric", "outcome": "wrong"})
        == 1
    )
    assert registry.get_sample_value("reward_pending_items") == 0


def test_blank_label_is_a_score_not_an_error(serve):
    [scored] = score(serve()[0], request(r"\boxed{1}", label=""))
    assert (scored.value, scored.rule) == (0.0, "bad_label")


def test_empty_batch_gives_no_scores(serve):
    assert score(serve()[0], request()) == []


def test_grader_can_be_named_and_an_unknown_one_is_refused(serve):
    stub, _ = serve()
    assert score(stub, request(r"\boxed{132}", grader="boxed"))[0].value == 1.0
    with pytest.raises(InvalidInputError, match="grader is 'guess'; wanted one of boxed"):
        score(stub, request("x", grader="guess"))


def test_batch_over_the_bound_is_refused(serve):
    with pytest.raises(InvalidInputError, match="the batch has 9 items; at most 8 are wanted"):
        score(serve()[0], request(*["x"] * 9))


def test_hang_is_a_timeout_score_and_the_rest_of_the_batch_arrives(serve):
    scores = score(serve(MISBEHAVING)[0], request("hang", "abc", "raise", "die", "ab"))
    assert [(s.value, s.rule) for s in scores] == [
        (0.0, "timeout"),
        (3.0, "string"),
        (0.0, "error"),
        (0.0, "error"),
        (2.0, "string"),
    ]
    assert [bool(s.error) for s in scores] == [True, False, True, True, False]


def test_overload_carries_a_retry_hint(serve):
    stub, _ = serve(MISBEHAVING, max_pending_items=3)
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
    stub, _ = serve(MISBEHAVING)
    with pytest.raises(DeadlineError):
        score(stub, request(*["sleep 0.9"] * 8), timeout=0.3)
    cancelled = stub.ScoreBatch.future(request(*["sleep 0.9"] * 8), timeout=30)
    threading.Timer(0.2, cancelled.cancel).start()
    with pytest.raises(grpc.FutureCancelledError):
        cancelled.result()
    started = time.monotonic()
    assert score(stub, request("abc"))[0].value == 3.0
    # 16 items would take 14 s.
    assert time.monotonic() - started < 7.0


def test_concurrent_calls_each_get_their_own_scores(serve):
    stub, _ = serve()
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


def test_items_of_a_batch_may_name_their_graders_and_errors_are_counted(serve):
    stub, _ = serve()
    message = request(r"\boxed{132}", r"\boxed{132}")
    message.items[0].grader = "boxed"
    message.items[1].label = ""
    reply = stub.ScoreBatch(message, timeout=30)
    assert [scored.value for scored in reply.scores] == [1.0, 0.0]
    assert reply.num_errors == 1
    message.items[1].grader = "guess"
    with pytest.raises(InvalidInputError, match="grader is 'guess'"):
        score(stub, message)


def test_graders_that_reach_out_are_served_only_if_the_recipe_names_them(serve):
    stub, _ = serve()
    with pytest.raises(InvalidInputError, match=r"grader 'os:system' reaches out of the service"):
        score(stub, request("true", grader="os:system"))
    with pytest.raises(InvalidInputError, match=r"grader 'remote:http://a/' reaches out"):
        score(stub, request("x", grader="mix:1*remote:http://a/"))
    assert score(stub, request(r"\boxed{132}", grader="mix:0.5*math,0.25*format"))[0].value == 0.75
    assert score(stub, request("Answer: 131", grader="dapo"))[0].value == -1.0


def stream_requests(*responses):
    for index, response in enumerate(responses):
        item = reward_pb2.ScoreItem(sample_id=f"s{index}", response=response, label="132")
        yield reward_pb2.ScoreStreamRequest(item=item)


def test_stream_sends_results_as_they_finish(serve):
    stub, _ = serve(MISBEHAVING, num_workers=2)
    results = list(stub.ScoreStream(stream_requests("sleep 0.5", "a", "ab", "hang", "abc"), timeout=30))
    assert {(r.index, r.score.sample_id, r.score.value, r.score.rule) for r in results} == {
        (0, "s0", 9.0, "string"),
        (1, "s1", 1.0, "string"),
        (2, "s2", 2.0, "string"),
        (3, "s3", 0.0, "timeout"),
        (4, "s4", 3.0, "string"),
    }
    assert [r.index for r in results][:2] == [1, 2], "quick ones do not wait for the slow one before them"


def test_stream_answers_before_its_sender_is_done(serve):
    stub, _ = serve()
    may_go_on = threading.Event()

    def requests():
        yield from stream_requests(r"\boxed{132}")
        assert may_go_on.wait(10)
        yield from stream_requests(r"\boxed{1}")

    results = stub.ScoreStream(requests(), timeout=30)
    assert next(results).score.value == 1.0
    may_go_on.set()
    assert [(r.index, r.score.value) for r in results] == [(1, 0.0)]


def test_empty_stream_ends(serve):
    assert list(serve()[0].ScoreStream(iter(()), timeout=10)) == []


def test_stream_longer_than_the_pool_waits_for_room(serve):
    stub, replica = serve(max_pending_items=3)
    results = list(stub.ScoreStream(stream_requests(*[r"\boxed{132}"] * 1000), timeout=60))
    assert sorted(r.index for r in results) == list(range(1000))
    assert replica.registry.get_sample_value("reward_samples_total", RIGHT) == 1000
    assert replica.registry.get_sample_value("reward_calls_total", {"method": "ScoreStream", "code": "OK"}) == 1


def test_unknown_grader_in_a_stream_is_refused(serve):
    item = reward_pb2.ScoreItem(response="x", label="1", grader="guess")
    stub, _ = serve()
    with pytest.raises(InvalidInputError, match="grader is 'guess'"):
        call(
            lambda: list(stub.ScoreStream(iter([reward_pb2.ScoreStreamRequest(item=item)]), timeout=10)), peer="reward"
        )


def test_stream_past_its_deadline_or_cancelled_frees_the_worker(serve):
    stub, _ = serve(MISBEHAVING)
    with pytest.raises(DeadlineError):
        call(lambda: list(stub.ScoreStream(stream_requests(*["hang"] * 50), timeout=0.3)), peer="reward")
    results = stub.ScoreStream(stream_requests(*["hang"] * 50), timeout=30)
    threading.Timer(0.2, results.cancel).start()
    with pytest.raises(grpc.RpcError):
        next(results)
    started = time.monotonic()
    assert score(stub, request("abc"))[0].value == 3.0
    assert time.monotonic() - started < 7.0


def test_a_call_too_many_is_refused_with_a_hint_and_health_still_answers(serve, stack):
    stub, replica = serve(MISBEHAVING, max_calls=2)
    slow = [stub.ScoreBatch.future(request("sleep 0.6"), timeout=30) for _ in range(2)]
    time.sleep(0.2)
    with pytest.raises(OverloadedError, match="2 calls wait for scores already") as caught:
        score(stub, request("a"))
    assert caught.value.retry_after_seconds == 1.0
    with pytest.raises(OverloadedError):
        call(lambda: list(stub.ScoreStream(stream_requests("a"), timeout=5)), peer="reward")
    with open_channel(replica.address, NO_CREDENTIALS) as channel:
        wait_for_health(channel, peer="reward", timeout_seconds=0.5)
    assert [future.result().scores[0].rule for future in slow] == ["string", "string"]
    assert score(stub, request("abc"))[0].value == 3.0


def test_calls_in_progress_are_finished_before_a_stop(serve):
    stub, replica = serve(MISBEHAVING)
    running = stub.ScoreBatch.future(request("sleep 0.5", "abc"), timeout=30)
    time.sleep(0.1)
    started = time.monotonic()
    replica.server.stop(grace_seconds=5)
    assert time.monotonic() - started < 3, "the stop does not use up the grace"
    assert [scored.value for scored in running.result().scores] == [9.0, 3.0]
    with pytest.raises(grpc.RpcError) as caught:
        stub.ScoreBatch(request("a"), timeout=5)
    assert caught.value.code() == grpc.StatusCode.UNAVAILABLE


def test_replicas_share_the_calls_and_one_takes_over_when_the_other_stops(stack):
    replicas = [stack.enter_context(reward_server()) for _ in range(2)]
    addresses = [replica.address for replica in replicas]
    stub = reward_pb2_grpc.RewardServiceStub(
        stack.enter_context(open_balanced_channel(addresses, NO_CREDENTIALS, service=SERVICE))
    )
    # The channel balances over the replicas it has reached.
    deadline = time.monotonic() + 20
    while not all(samples_of(replica) for replica in replicas):
        score(stub, request(r"\boxed{132}"))
        assert time.monotonic() < deadline
    before = [samples_of(replica) for replica in replicas]
    for _ in range(20):
        score(stub, request(r"\boxed{132}"))
    assert [samples_of(replica) - count for replica, count in zip(replicas, before, strict=True)] == [10, 10]
    replicas[0].server.stop(grace_seconds=0)
    before = samples_of(replicas[1])
    assert [score(stub, request(r"\boxed{132}"))[0].value for _ in range(20)] == [1.0] * 20
    assert samples_of(replicas[1]) - before == 20


def test_replicas_are_balanced_with_certificates_and_a_token(stack, tmp_path):
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    names = ["-subj", "/CN=furlong", "-addext", "subjectAltName=DNS:localhost"]
    files = ["-keyout", str(key), "-out", str(certificate)]
    command = ["openssl", "req", "-x509", *curve, "-days", "2", *names, *files]
    subprocess.run(command, check=True, capture_output=True, timeout=30)
    pem = certificate.read_bytes()
    credentials = Credentials(token="right", certificate=pem, key=key.read_bytes(), authority=pem)
    replicas = [stack.enter_context(reward_server(credentials=credentials)) for _ in range(2)]
    addresses = [f"localhost:{replica.server.port}" for replica in replicas]
    channel = stack.enter_context(open_balanced_channel(addresses, credentials, service=SERVICE))
    stub = reward_pb2_grpc.RewardServiceStub(channel)
    deadline = time.monotonic() + 20
    while not all(samples_of(replica) for replica in replicas):
        assert score(stub, request(r"\boxed{132}"))[0].value == 1.0
        assert time.monotonic() < deadline


def test_replica_whose_host_is_unknown_is_named():
    with pytest.raises(UnavailableError, match=r"host 'no\.such\.host\.invalid' cannot be resolved"):
        open_balanced_channel(["127.0.0.1:1", "no.such.host.invalid:2"], NO_CREDENTIALS, service=SERVICE)


def samples_of(replica):
    return replica.registry.get_sample_value("reward_samples_total", RIGHT) or 0
