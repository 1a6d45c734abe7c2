"""A version is on all engines or on none, whatever one engine does."""

import threading
import time

import pytest
from prometheus_client import CollectorRegistry

from services.common.errors import (
    FurlongError,
    InvalidInputError,
    StateConflictError,
    TransferError,
    UnavailableError,
)
from services.weights.coordinator import Coordinator
from services.weights.metrics import WeightsMetrics
from services.weights.published import (
    PublishOutcome,
    VersionRecord,
    VersionState,
)
from services.weights.transfer import SourceBuffer, SourceRankOffer
from services.weights.version_store import MemoryVersionStore
from tests.unit.weights import tiny_world as world
from tests.unit.weights.scripted_cluster import Cluster, ScriptedEngine, version

COMMITTED, ABORTED = VersionState.COMMITTED, VersionState.ABORTED
GONE = UnavailableError("nothing listens at the engine's address")
REFUSAL = TransferError("piece x has another digest")


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


@pytest.fixture
def three(cluster: Cluster) -> Cluster:
    """Three engines that hold version 1."""
    for name in ("a", "b", "c"):
        cluster.add(name)
    assert cluster.publish(1).state is COMMITTED
    return cluster


def test_every_engine_commits_and_the_outcome_tells_figures(cluster: Cluster):
    cluster.add("a")
    cluster.add("b", tp=2)
    outcome = cluster.publish(1)
    assert (outcome.state, outcome.reason, outcome.is_committed) == (COMMITTED, "", True)
    assert cluster.steps() == [1, 1]
    # One copy of all but the draft-shared embedding: embed 160, q 64, o 64, norm 8, bias 4, experts 12 * 96 floats.
    single_copy = 4 * (160 + 64 + 64 + 8 + 4 + 12 * 96)
    # With two ranks norm and bias are fetched twice.
    assert [engine.num_bytes for engine in outcome.engines] == [single_copy, single_copy + 4 * (8 + 4)]
    assert all(engine.are_digests_equal and engine.pause_seconds == 0.25 for engine in outcome.engines)
    assert [engine.calls for engine in cluster.engines.values()] == [["prepare", "commit"]] * 2
    assert cluster.registry.get_sample_value("weights_versions_total", {"state": "committed"}) == 1.0


@pytest.mark.parametrize("error", [GONE, REFUSAL])
def test_one_engine_of_three_that_cannot_prepare_stops_the_version_everywhere(three: Cluster, error: FurlongError):
    three.engines["b"].fail["prepare"] = error
    outcome = three.publish(2)
    assert (outcome.state, outcome.reason) == (ABORTED, f"b: {error}")
    assert [engine.error for engine in outcome.engines] == ["", str(error), ""]
    assert three.steps() == [1, 1, 1]
    assert [engine.staged for engine in three.engines.values()] == [None] * 3
    assert all("commit" not in engine.calls[2:] for engine in three.engines.values())
    assert three.states() == [(1, COMMITTED), (2, ABORTED)]
    assert three.quarantined() == ["b"]
    assert three.registry.get_sample_value("weights_engines_count", {"standing": "quarantined"}) == 1.0


def test_aborted_step_is_published_again_without_the_quarantined_engine(three: Cluster):
    three.engines["b"].fail["prepare"] = GONE
    plan = three.coordinator.plan_transfer(world.offers())
    buffers = three.buffers(2)
    assert three.publish_plan(2, plan.plan_id, buffers).state is ABORTED
    with pytest.raises(StateConflictError, match=r"is out of date, .* call PlanTransfer again"):
        three.publish_plan(2, plan.plan_id, buffers)
    assert three.publish(2).state is COMMITTED
    assert three.steps() == [2, 1, 2]
    assert three.states() == [(1, COMMITTED), (2, COMMITTED)]


def test_fault_of_the_sources_quarantines_nobody(three: Cluster):
    for engine in three.engines.values():
        engine.fail["prepare"] = REFUSAL
    assert three.publish(2).state is ABORTED
    assert three.quarantined() == []
    for engine in three.engines.values():
        engine.fail.clear()
    assert three.publish(2).state is COMMITTED


def test_engine_that_does_not_answer_is_quarantined_even_when_it_is_the_only_one(cluster: Cluster):
    cluster.add("a").fail["prepare"] = GONE
    assert cluster.publish(1).state is ABORTED
    assert cluster.quarantined() == ["a"]
    with pytest.raises(StateConflictError, match=r"0 engines take part \(quarantined: a\)"):
        cluster.publish(1)


def test_hanging_engine_aborts_the_version_within_the_phase_timeout():
    cluster = Cluster(phase_timeout_seconds=0.1)
    for name in ("a", "b"):
        cluster.add(name)
    release = threading.Event()
    cluster.engines["b"].before["prepare"] = lambda: release.wait(20)
    started = time.monotonic()
    outcome = cluster.publish(1)
    release.set()
    assert time.monotonic() - started < 5.0
    assert outcome.state is ABORTED
    assert outcome.reason == "b: no answer within 2 s; see the engine's log"
    assert cluster.steps() == [None, None]
    assert cluster.quarantined() == ["b"]


def test_engine_that_fails_to_commit_after_others_is_quarantined_and_the_version_counts(three: Cluster):
    three.engines["c"].fail["commit"] = GONE
    outcome = three.publish(2)
    assert (outcome.state, outcome.reason) == (COMMITTED, "")
    assert [engine.error for engine in outcome.engines] == ["", "", str(GONE)]
    assert three.steps() == [2, 2, 1]
    assert three.quarantined() == ["c"]


def test_live_parameters_with_other_digests_quarantine_the_engine(three: Cluster):
    three.engines["a"].are_digests_equal = False
    outcome = three.publish(2)
    assert outcome.state is COMMITTED
    assert [engine.are_digests_equal for engine in outcome.engines] == [False, True, True]
    assert "live parameters of a differ" in outcome.engines[0].error
    assert three.quarantined() == ["a"]


def test_version_that_no_engine_commits_is_aborted(three: Cluster):
    for engine in three.engines.values():
        engine.fail["commit"] = GONE
    outcome = three.publish(2)
    assert outcome.state is ABORTED
    assert three.states()[-1] == (2, ABORTED)
    assert three.quarantined() == ["a", "b", "c"]


def test_repeated_request_returns_the_outcome_without_doing_it_again(cluster: Cluster):
    engine = cluster.add("a")
    plan = cluster.coordinator.plan_transfer(world.offers())
    first = cluster.publish_plan(1, plan.plan_id, cluster.buffers(1), request_id="once")
    again = cluster.publish_plan(1, plan.plan_id, cluster.buffers(1), request_id="once")
    assert again is first
    assert engine.calls == ["prepare", "commit"]
    with pytest.raises(InvalidInputError, match="request_id is empty"):
        cluster.coordinator.publish_version(request_id="", version=version(2), plan_id=plan.plan_id, buffers=[])


def test_concurrent_publications_are_serialised_and_the_same_request_runs_once(cluster: Cluster):
    engine = cluster.add("a")
    engine.before["prepare"] = lambda: time.sleep(0.05)
    plan = cluster.coordinator.plan_transfer(world.offers())
    buffers = {step: cluster.buffers(step) for step in (1, 2)}
    outcomes: list[PublishOutcome] = []
    threads = [
        threading.Thread(
            target=lambda step=step: outcomes.append(
                cluster.publish_plan(step, plan.plan_id, buffers[step], request_id=f"step-{step}")
            )
        )
        for step in (1, 1, 1)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert engine.calls == ["prepare", "commit"]
    assert len(outcomes) == 3
    assert cluster.publish_plan(2, plan.plan_id, buffers[2]).state is COMMITTED


def test_step_that_is_not_above_the_last_committed_one_is_refused(three: Cluster):
    three.publish(5)
    for step in (3, 5):
        with pytest.raises(StateConflictError, match="publish step 6 or later"):
            three.publish(step)
    assert three.publish(0).state is COMMITTED
    assert three.states() == [(0, COMMITTED)]
    assert three.publish(1).state is COMMITTED


def test_buffers_that_do_not_match_the_plan_leave_no_trace(three: Cluster):
    plan = three.coordinator.plan_transfer(world.offers())
    with pytest.raises(InvalidInputError, match="the buffer of rank 0 is missing"):
        three.publish_plan(2, plan.plan_id, [])
    assert three.states() == [(1, COMMITTED)]


def test_planning_without_engines_says_what_to_start(cluster: Cluster):
    with pytest.raises(StateConflictError, match=r"0 engines take part \(quarantined: none\).*start a rollout service"):
        cluster.coordinator.plan_transfer(world.offers())
    with pytest.raises(StateConflictError):
        cluster.publish_plan(1, "x", [])


def test_new_engine_makes_the_plan_out_of_date_and_the_same_engine_again_does_not(cluster: Cluster):
    cluster.add("a")
    plan = cluster.coordinator.plan_transfer(world.offers())
    former = cluster.engines["a"]
    cluster.add("a")
    assert former.is_closed
    assert cluster.coordinator.plan_transfer(world.offers()).plan_id == plan.plan_id
    assert cluster.publish_plan(1, plan.plan_id, cluster.buffers(1)).state is COMMITTED
    cluster.add("b")
    with pytest.raises(StateConflictError, match="is out of date"):
        cluster.publish_plan(2, plan.plan_id, [])


def test_engine_before_the_first_version_waits(cluster: Cluster):
    cluster.engines["a"] = ScriptedEngine()
    assert cluster.coordinator.register_engine("a", "a", world.layouts()) is None
    assert cluster.engines["a"].calls == []
    assert [(r.engine_id, r.version, r.is_quarantined) for r in cluster.coordinator.engines()] == [("a", None, False)]


@pytest.mark.parametrize("tp", [1, 2])
def test_engine_that_comes_late_or_back_gets_the_committed_version(cluster: Cluster, tp: int):
    cluster.add("a", tp=tp)
    cluster.publish(1, offers=world.offers(tp=2, dp=2))
    cluster.engines["b"] = ScriptedEngine()
    assert cluster.coordinator.register_engine("b", "b", world.layouts(tp)) == version(1)
    late, first = cluster.engines["b"], cluster.engines["a"]
    assert late.calls == ["prepare", "commit"]
    assert cluster.steps() == [1, 1]
    assert {(p.piece.piece_id, p.digest, r.buffers[p.buffer]) for r in late.ranks for p in r.pieces} == {
        (p.piece.piece_id, p.digest, r.buffers[p.buffer]) for r in first.ranks for p in r.pieces
    }


def test_quarantined_engine_rejoins_by_registering(three: Cluster):
    three.engines["b"].fail["prepare"] = GONE
    three.publish(2)
    three.publish(2)
    three.add("b")
    assert three.quarantined() == []
    assert three.steps() == [2, 2, 2]
    assert three.publish(3).state is COMMITTED
    assert three.steps() == [3, 3, 3]


def test_engine_that_cannot_fetch_the_committed_version_waits_for_the_next(three: Cluster):
    late = three.engines["d"] = ScriptedEngine()
    late.fail["prepare"] = TransferError("the source is gone")
    assert three.coordinator.register_engine("d", "d", world.layouts()) is None
    other_pieces = three.engines["e"] = ScriptedEngine()
    assert three.coordinator.register_engine("e", "e", world.layouts(2)) is None
    assert other_pieces.calls == []
    late.fail.clear()
    assert three.publish(2).state is COMMITTED
    assert three.steps() == [2] * 5
    assert three.registry.get_sample_value("weights_catch_ups_total", {"outcome": "waiting"}) == 2.0


@pytest.mark.parametrize("how", ["error", "digests"])
def test_engine_that_fails_to_commit_while_catching_up_stays_out(three: Cluster, how: str):
    late = three.engines["d"] = ScriptedEngine()
    if how == "error":
        late.fail["commit"] = TransferError("rank 1 refused")
    late.are_digests_equal = how != "digests"
    with pytest.raises(TransferError):
        three.coordinator.register_engine("d", "d", world.layouts())
    assert three.quarantined() == ["d"]
    assert three.publish(2).state is COMMITTED


def test_registration_with_what_the_trainer_does_not_have_is_refused(cluster: Cluster):
    few = [SourceRankOffer(rank=0, shards=tuple(s for s in world.offers()[0].shards if s.tensor != "norm"))]
    cluster.add("a")
    with pytest.raises(InvalidInputError, match="engine a rank 0 target parameter norm needs tensor norm"):
        cluster.publish(1, offers=few)
    with pytest.raises(InvalidInputError, match="is empty; give both"):
        cluster.coordinator.register_engine("", "x", world.layouts())


def test_store_that_fails_before_the_decision_aborts_on_every_engine():
    class FailingStore(MemoryVersionStore):
        def put(self, record: VersionRecord) -> None:
            if record.state is VersionState.VERIFIED:
                raise UnavailableError("Redis is gone")
            super().put(record)

    engine = ScriptedEngine()
    coordinator = Coordinator(
        store=FailingStore(),
        connect=lambda address: engine,
        metrics=WeightsMetrics(CollectorRegistry()),
        bucket_bytes=256,
        phase_timeout_seconds=5.0,
    )
    coordinator.register_engine("a", "a", world.layouts())
    plan = coordinator.plan_transfer(world.offers())
    digests = ("0" * 16,) * len(plan.ranks[0].pieces)
    buffers = [SourceBuffer(rank=0, transport="shm", endpoint="x", digests=digests)]
    with pytest.raises(UnavailableError, match="Redis is gone"):
        coordinator.publish_version(request_id="1", version=version(1), plan_id=plan.plan_id, buffers=buffers)
    assert engine.calls == ["prepare", "abort"]
    assert engine.version is None


def test_restarted_service_aborts_what_was_in_progress_and_keeps_the_order(cluster: Cluster):
    cluster.add("a")
    cluster.publish(4)
    cluster.store.put(VersionRecord(version=version(5), state=VersionState.VERIFIED, reason=""))
    restarted = Cluster()
    restarted.store = cluster.store
    restarted.coordinator = Coordinator(
        store=cluster.store,
        connect=lambda address: restarted.engines[address],
        metrics=WeightsMetrics(CollectorRegistry()),
        bucket_bytes=256,
        phase_timeout_seconds=5.0,
    )
    assert restarted.states() == [(4, COMMITTED), (5, ABORTED)]
    restarted.add("a")
    with pytest.raises(StateConflictError, match="publish step 5 or later"):
        restarted.publish(4)
    assert restarted.publish(5).state is COMMITTED
