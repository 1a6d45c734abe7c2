"""The state machine's traces, and one conformance test for both stores."""

import itertools
import uuid
from collections.abc import Iterator

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from services.common.embedded_valkey import EmbeddedValkey
from services.common.errors import InvalidInputError, StateConflictError, UnavailableError
from services.common.records import PolicyVersion
from services.common.redis_connection import open_redis
from services.weights.published import VersionRecord, VersionState
from services.weights.version_store import (
    MemoryVersionStore,
    RedisVersionStore,
    VersionStore,
    abort_unfinished,
    advance,
    announce,
    last_committed_step,
)

PREPARED, TRANSFERRING, VERIFIED, COMMITTED, ABORTED = VersionState


def version(step: int, run_id: str = "r") -> PolicyVersion:
    return PolicyVersion(run_id=run_id, step=step)


def record(step: int, state: VersionState = COMMITTED, run_id: str = "r", reason: str = "") -> VersionRecord:
    return VersionRecord(version=version(step, run_id), state=state, reason=reason)


@pytest.fixture(scope="module")
def client(tmp_path_factory) -> Iterator[redis.Redis]:
    server = EmbeddedValkey(folder=tmp_path_factory.mktemp("valkey"))
    server.start()
    client = open_redis(server.url)
    yield client
    client.close()
    server.stop()


@pytest.fixture(params=["memory", "redis"])
def store(request: pytest.FixtureRequest) -> VersionStore:
    if request.param == "memory":
        return MemoryVersionStore()
    return RedisVersionStore(request.getfixturevalue("client"), prefix=f"test:{uuid.uuid4().hex}")


def test_only_the_drawn_steps_of_the_state_machine_exist():
    allowed = {
        (PREPARED, TRANSFERRING),
        (TRANSFERRING, VERIFIED),
        (VERIFIED, COMMITTED),
        (PREPARED, ABORTED),
        (TRANSFERRING, ABORTED),
        (VERIFIED, ABORTED),
    }
    for before, after in itertools.product(VersionState, VersionState):
        if (before, after) in allowed:
            assert advance(record(1, before), after, reason="why") == record(1, after, reason="why")
        else:
            with pytest.raises(StateConflictError, match=f"version r@1 is {before.value} and cannot become"):
                advance(record(1, before), after)


def test_step_must_be_above_the_last_committed_one_or_zero():
    known = [record(0), record(3), record(4, ABORTED), record(9, run_id="other")]
    assert last_committed_step(known, "r") == 3
    for step in (4, 7, 0):
        assert announce(version(step), known) == record(step, PREPARED)
    for step in (1, 3):
        with pytest.raises(StateConflictError, match=f"r@{step} is not above .* step 3; publish step 4 or later"):
            announce(version(step), known)
    assert announce(version(2), []) == record(2, PREPARED)


def test_versions_without_run_or_with_a_negative_step_are_refused():
    for bad in (version(1, run_id=""), version(-1)):
        with pytest.raises(InvalidInputError, match="give a run id and a step of 0 or more"):
            announce(bad, [])


def test_records_come_back_in_order_of_run_and_step(store: VersionStore):
    records = [record(10), record(2, ABORTED, reason="rollout-1: gone; rollout-2: late"), record(0, run_id="a")]
    for item in records:
        store.put(item)
    assert store.records() == (records[2], records[1], records[0])
    assert store.records("r") == (records[1], records[0])
    assert store.records("unknown") == ()


def test_later_record_replaces_the_earlier_one_of_its_version(store: VersionStore):
    for state in (PREPARED, ABORTED, PREPARED, TRANSFERRING, VERIFIED, COMMITTED):
        store.put(record(5, state))
        assert store.records("r") == (record(5, state),)


def test_committing_step_zero_starts_the_run_over(store: VersionStore):
    for item in (record(0), record(1), record(2, ABORTED), record(1, run_id="other")):
        store.put(item)
    store.put(record(0, PREPARED))
    assert len(store.records("r")) == 3
    store.put(record(0))
    assert store.records() == (record(1, run_id="other"), record(0))
    assert announce(version(1), store.records("r")) == record(1, PREPARED)


def test_what_a_dead_service_left_in_progress_is_aborted(store: VersionStore):
    for step, state in enumerate((COMMITTED, ABORTED, PREPARED, TRANSFERRING, VERIFIED)):
        store.put(record(step + 1, state))
    abort_unfinished(store)
    reason = "the weights service ended before the outcome"
    left_over = [record(step, ABORTED, reason=reason) for step in (3, 4, 5)]
    assert store.records() == (record(1), record(2, ABORTED), *left_over)


def test_redis_store_finds_what_another_one_kept(client: redis.Redis):
    prefix = f"test:{uuid.uuid4().hex}"
    RedisVersionStore(client, prefix=prefix).put(record(3, ABORTED, reason="a b  c"))
    assert RedisVersionStore(client, prefix=prefix).records() == (record(3, ABORTED, reason="a b  c"),)


def test_unreachable_redis_is_unavailable():
    client = redis.Redis(host="127.0.0.1", port=1, retry=Retry(NoBackoff(), 0))
    store = RedisVersionStore(client)
    with pytest.raises(UnavailableError, match="version r@1 is not stored"):
        store.put(record(1))
    with pytest.raises(UnavailableError, match="cannot be read from Redis"):
        store.records()
