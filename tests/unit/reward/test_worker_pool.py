import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from services.common.errors import AbortedError, DeadlineError, OverloadedError, UnavailableError
from services.reward.failure_scores import failure_value
from services.reward.graders import GraderSettings
from services.reward.metrics import RewardMetrics
from services.reward.worker_pool import WorkerPool
from services.reward.worker_process import GradeItem, WorkerLimits
from services.reward.worker_template import WORKER_COMMAND
from services.reward.zero_score_watch import ZeroScoreWatch

MISBEHAVING = (sys.executable, str(Path(__file__).with_name("misbehaving_worker.py")))
LIMIT_SECONDS = 1.0


@pytest.fixture
def registry():
    return CollectorRegistry()


@pytest.fixture
def make_pool(registry):
    pools = []

    def make(*, num_workers=1, command=MISBEHAVING, max_pending_items=1000):
        metrics = RewardMetrics(registry)
        pool = WorkerPool(
            num_workers=num_workers,
            settings=GraderSettings(require_single_box=True),
            limits=WorkerLimits(limit_seconds=LIMIT_SECONDS, memory_bytes=256 * 1024 * 1024),
            max_pending_items=max_pending_items,
            metrics=metrics,
            zero_watch=ZeroScoreWatch(metrics, window_samples=1000),
            command=command,
        )
        pools.append(pool)
        return pool

    yield make
    for pool in pools:
        pool.close()


def items(*responses, label="x"):
    return [
        GradeItem(sample_id=str(index), grader="boxed", prompt="", response=response, label=label)
        for index, response in enumerate(responses)
    ]


def score(pool, *responses, label="x"):
    return pool.submit(items(*responses, label=label)).wait(timeout_seconds=60)


def summary(scores):
    return [(item.value, item.rule) for item in scores]


def wait_until(condition):
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def is_gone(process_id):
    try:
        os.kill(process_id, 0)
    except ProcessLookupError:
        return True
    return False


def test_scores_come_in_the_items_order(make_pool):
    pool = make_pool(num_workers=2)
    lengths = [7, 1, 5, 0, 3] * 20
    assert [item.value for item in score(pool, *("a" * length for length in lengths))] == lengths


def test_empty_batch_is_done_at_once(make_pool):
    assert make_pool().submit([]).wait(timeout_seconds=0) == []


def test_the_products_worker_grades_boxes(make_pool):
    pool = make_pool(command=WORKER_COMMAND)
    [right, wrong, several] = score(pool, r"\boxed{12}", r"\boxed{13}", r"\boxed{12}\boxed{12}", label="12")
    assert (right.value, right.rule, right.extracted, right.error) == (1.0, "string", "12", "")
    assert 0 < right.seconds < LIMIT_SECONDS
    assert (wrong.value, wrong.rule, wrong.extracted) == (0.0, "numeric", "13")
    assert (several.value, several.rule) == (0.0, "several_answers")


def test_blank_label_and_exception_are_scores_with_their_reason(make_pool):
    pool = make_pool()
    [blank] = score(pool, "abc", label=" ")
    assert (blank.value, blank.rule) == (0.0, "bad_label")
    assert "give the right answer" in blank.error
    raised, fine = score(pool, "raise", "abc")
    assert (raised.value, raised.rule, raised.error) == (0.0, "error", "ValueError: no such answer")
    assert (fine.value, fine.rule) == (3.0, "string")


def test_a_hang_costs_its_own_worker_one_limit(make_pool, registry):
    pool = make_pool(num_workers=2)
    before = set(pool.process_ids)
    started = time.monotonic()
    hung = pool.submit(items("hang", "ab"))
    others = score(pool, *["abc"] * 50)
    others_seconds = time.monotonic() - started
    assert summary(others) == [(3.0, "string")] * 50
    assert others_seconds < LIMIT_SECONDS, "the other worker goes on meanwhile"
    assert summary(hung.wait(timeout_seconds=60)) == [(0.0, "timeout"), (2.0, "string")]
    wait_until(lambda: len(pool.process_ids) == 2)  # the killed worker is replaced
    after = set(pool.process_ids)
    assert len(before & after) == 1
    assert all(is_gone(process_id) for process_id in before - after)
    assert registry.get_sample_value("reward_workers_lost_total", {"cause": "timeout"}) == 1
    assert (
        registry.get_sample_value("reward_samples_total", {"grader": "boxed", "rule": "timeout", "outcome": "error"})
        == 1
    )


def test_timeout_score_tells_the_limit_and_the_time(make_pool):
    [hung] = score(make_pool(), "hang")
    assert hung.error == "the grader took more than 1 s"
    assert LIMIT_SECONDS <= hung.seconds < 5


def test_item_whose_worker_was_killed_from_outside_is_graded_by_the_next(make_pool, tmp_path):
    pool = make_pool()
    assert summary(score(pool, f"die once {tmp_path / 'marker'}", "ab"))[1] == (2.0, "string")
    wait_until(lambda: pool.process_ids)
    os.kill(pool.process_ids[0], signal.SIGKILL)
    assert summary(score(pool, "ab", "abc")) == [(2.0, "string"), (3.0, "string")]


def test_item_that_kills_every_worker_gets_an_error_and_the_batch_arrives(make_pool, registry):
    pool = make_pool()
    dead, fine = score(pool, "die", "abc")
    assert (dead.value, dead.rule, dead.error) == (0.0, "error", "the grading worker died 2 times")
    assert fine.value == 3.0
    assert registry.get_sample_value("reward_workers_lost_total", {"cause": "died"}) == 2


def test_memory_limit_stops_a_greedy_grader_only(make_pool):
    pool = make_pool()
    before = pool.process_ids
    greedy, fine = score(pool, "eat", "abc")
    assert (greedy.value, greedy.rule, greedy.error) == (0.0, "error", "MemoryError: ")
    assert fine.value == 3.0
    assert pool.process_ids == before


def test_isolated_worker_opens_neither_files_nor_sockets(make_pool):
    opened, connected, fine = score(make_pool(command=(*MISBEHAVING, "--isolated")), "open", "connect", "abc")
    for scored in (opened, connected):
        assert (scored.value, scored.rule) == (0.0, "error")
        assert "Too many open files" in scored.error
    assert fine.value == 3.0


def test_only_isolation_keeps_a_worker_from_files_and_sockets(make_pool):
    assert summary(score(make_pool(), "open", "connect")) == [(4.0, "string"), (7.0, "string")]


def test_template_that_dies_is_started_again(make_pool):
    pool = make_pool(num_workers=2)
    before = set(pool.process_ids)
    with open(f"/proc/{pool.process_ids[0]}/stat") as file:
        template = int(file.read().rpartition(")")[2].split()[1])
    os.kill(template, signal.SIGKILL)
    wait_until(lambda: all(is_gone(process_id) for process_id in before))  # workers die with their template
    assert summary(score(pool, *["abc"] * 20)) == [(3.0, "string")] * 20
    assert not before & set(pool.process_ids)


def test_killed_worker_is_replaced_within_a_moment(make_pool):
    pool = make_pool(command=WORKER_COMMAND)
    for _ in range(10):
        os.kill(pool.process_ids[0], signal.SIGKILL)
        started = time.monotonic()
        assert score(pool, r"\boxed{12}", label="12")[0].value == 1.0
        assert time.monotonic() - started < 0.5


def test_graders_lowest_score_is_given_when_nothing_can_be_judged():
    assert [failure_value(name) for name in ("boxed", "math", "dapo", "dapo:boxed", "dapo.py:f")] == [
        0.0,
        0.0,
        -1.0,
        -1.0,
        0.0,
    ]


def test_output_of_a_grader_does_not_disturb_the_protocol(make_pool):
    assert summary(score(make_pool(), "print", "abc")) == [(5.0, "string"), (3.0, "string")]


def test_large_and_odd_texts_pass_unchanged(make_pool):
    pool = make_pool()
    odd = '"\n\0\u2028é😀' * 20_000
    [scored] = score(pool, odd)
    assert scored.value == len(odd)
    assert scored.extracted == odd


def test_full_pool_refuses_a_whole_batch_with_a_hint(make_pool):
    pool = make_pool(max_pending_items=3)
    pending = pool.submit(items("sleep 0.2", "ab"))
    with pytest.raises(OverloadedError, match="2 items wait for 1 grading workers, and 2 more exceed 3") as caught:
        pool.submit(items("a", "b"))
    assert caught.value.retry_after_seconds == LIMIT_SECONDS
    assert len(pending.wait(timeout_seconds=60)) == 2
    assert len(score(pool, "a", "b")) == 2


def test_cancelled_batch_frees_its_worker(make_pool, registry):
    pool = make_pool()
    pending = pool.submit(items(*["hang"] * 100))
    time.sleep(0.1)
    pending.cancel()
    with pytest.raises(AbortedError, match="100 of 100 items are not graded"):
        pending.wait(timeout_seconds=60)
    started = time.monotonic()
    assert summary(score(pool, "abc")) == [(3.0, "string")]
    assert time.monotonic() - started < LIMIT_SECONDS / 2, "not even the item in hand is waited for"
    assert registry.get_sample_value("reward_workers_lost_total", {"cause": "cancelled"}) == 1


def test_late_batch_is_given_up(make_pool):
    pool = make_pool()
    pending = pool.submit(items(*["sleep 0.3"] * 100))
    with pytest.raises(DeadlineError, match=r"100 of 100 items are not graded after 0\.1 s"):
        pending.wait(timeout_seconds=0.1)
    assert pending.is_cancelled


def test_close_ends_every_worker_and_every_waiter(make_pool):
    pool = make_pool(num_workers=2)
    process_ids = pool.process_ids
    pending = pool.submit(items("hang", "hang", "ab"))
    errors = []

    def wait():
        try:
            pending.wait(timeout_seconds=60)
        except AbortedError as error:
            errors.append(str(error))

    waiter = threading.Thread(target=wait)
    waiter.start()
    started = time.monotonic()
    pool.close()
    pool.close()
    waiter.join()
    assert time.monotonic() - started < 5
    assert errors
    assert all(is_gone(process_id) for process_id in process_ids)
    with pytest.raises(UnavailableError, match="is stopping"):
        pool.submit(items("a"))


def test_worker_that_cannot_start_is_named(make_pool):
    with pytest.raises(UnavailableError, match=r"was not ready .*\(exit code 7\)"):
        make_pool(command=(sys.executable, "-c", "import sys; sys.exit(7)"))


def test_worker_imports_nothing_heavy():
    """A killed worker is replaced at once only if starting one is cheap."""
    code = "import sys, services.reward.worker; print(*sorted(sys.modules))"
    loaded = set(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.split())
    assert "services.reward.graders.boxed" in loaded
    assert not loaded & {"grpc", "google.protobuf", "pydantic", "torch", "redis", "prometheus_client", "numpy"}
