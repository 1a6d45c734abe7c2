"""Collecting a round: completeness, staleness, replays and abandoned histories."""

import itertools

import pytest

from services.common.errors import DeadlineError, ShortRoundError
from services.common.memory_prompt_ledger import MemoryPromptLedger
from services.common.memory_sample_queue import MemoryQueueState, MemorySampleQueue
from services.common.records import FinishReason, Group, Sample, VersionSpan, group_id
from services.trainer.claiming import RoundCollector, lag_steps

RUN = "run"


def make_group(*, round_: int, position: int, step: int) -> Group:
    name = group_id(run_id=RUN, round_=round_, position=position)
    sample = Sample(
        sample_id=f"{name}/0",
        response_token_ids=(5, 0),
        logprobs=(-0.5, -0.25),
        version_spans=(VersionSpan(step=step, num_tokens=2),),
        reward=1.0,
        finish_reason=FinishReason.STOP,
        num_verify_steps=1,
    )
    return Group(group_id=name, round=round_, position=position, prompt_token_ids=(3, 4), samples=(sample,))


class Scene:
    """A queue, a ledger of two groups a round (three prompts at most), and collectors over them."""

    def __init__(self) -> None:
        self.state = MemoryQueueState()
        ticks = itertools.count()
        self.ledger = MemoryPromptLedger(
            run_id=RUN, groups_per_round=2, max_prompts_per_round=3, lease_seconds=1e6, clock=lambda: float(next(ticks))
        )

    def queue(self) -> MemorySampleQueue:
        return MemorySampleQueue(run_id=RUN, max_groups=100, state=self.state)

    def collector(
        self, *, max_lag_versions: int = 0, min_groups: int = 0, timeout_seconds: float = 5.0
    ) -> RoundCollector:
        return RoundCollector(
            queue=self.queue(),
            ledger=self.ledger,
            max_lag_versions=max_lag_versions,
            min_groups=min_groups,
            timeout_seconds=timeout_seconds,
            should_stop=lambda: False,
        )

    def make(self, *, max_round: int, step: int, count: int = 1) -> list[Group]:
        """Leases prompts and has them accepted, made by a version."""
        groups = []
        for lease in self.ledger.lease(worker="w", max_round=max_round, max_prompts=count):
            group = make_group(round_=lease.round, position=lease.position, step=step)
            self.queue().push(group)
            assert self.ledger.settle_accepted(lease, rewards=[1.0])
            groups.append(group)
        return groups


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_a_complete_round_comes_in_order_of_position(scene: Scene) -> None:
    scene.make(max_round=0, step=0, count=2)
    collected = scene.collector().collect(0)
    assert collected is not None
    assert [queued.group.position for queued in collected.queued] == [0, 1]
    assert collected.state.num_accepted == 2


def test_a_round_that_stays_short_is_collected_as_it_is(scene: Scene) -> None:
    scene.make(max_round=0, step=0)
    for _ in range(2):
        (lease,) = scene.ledger.lease(worker="w", max_round=0, max_prompts=1)
        scene.ledger.settle_dropped(lease, reason="equal_rewards", rewards=[0.0])
    collected = scene.collector().collect(0)
    assert collected is not None
    assert len(collected.queued) == 1
    assert collected.state.num_dropped == {"equal_rewards": 2}


def test_a_round_that_stays_short_is_an_error_where_the_recipe_says_so(scene: Scene) -> None:
    scene.make(max_round=0, step=0)
    for _ in range(2):
        (lease,) = scene.ledger.lease(worker="w", max_round=0, max_prompts=1)
        scene.ledger.settle_dropped(lease, reason="equal_rewards", rewards=[0.0])
    message = (
        r"round 0 has 1 of 2 groups after 3 prompts \(2 equal_rewards dropped\); raise rollout.max_refills, .*"
        'when_short="train_short"'
    )
    with pytest.raises(ShortRoundError, match=message):
        scene.collector(min_groups=2).collect(0)
    # the group is neither lost nor acknowledged: with more refills, or without the rule, the run goes on from here
    collected = scene.collector().collect(0)
    assert collected is not None
    assert [queued.group.position for queued in collected.queued] == [0]


def test_a_full_round_is_collected_where_short_ones_are_errors(scene: Scene) -> None:
    scene.make(max_round=0, step=0, count=2)
    collected = scene.collector(min_groups=2).collect(0)
    assert collected is not None
    assert len(collected.queued) == 2


def test_an_incomplete_round_ends_in_an_error_that_says_what_is_missing(scene: Scene) -> None:
    scene.make(max_round=0, step=0)
    with pytest.raises(DeadlineError, match="round 0 has 1 accepted and 0 leased prompts"):
        scene.collector(timeout_seconds=0.3).collect(0)


def test_a_group_that_is_too_old_is_made_again(scene: Scene) -> None:
    scene.make(max_round=1, step=0, count=4)  # rounds 0 and 1, all made by version 0
    collector = scene.collector(max_lag_versions=0, timeout_seconds=0.5)
    assert collector.collect(0) is not None
    with pytest.raises(DeadlineError):
        collector.collect(1)
    assert scene.ledger.round_state(1).num_rejected == {"too_old": 2}
    again = scene.make(max_round=1, step=1, count=2)
    collected = collector.collect(1)
    assert collected is not None
    assert [queued.group for queued in collected.queued] == sorted(again, key=lambda group: group.position)


def test_lag_of_one_is_accepted_when_it_is_allowed(scene: Scene) -> None:
    scene.make(max_round=1, step=0, count=4)
    collector = scene.collector(max_lag_versions=1)
    assert collector.collect(0) is not None
    collected = collector.collect(1)
    assert collected is not None
    assert [lag_steps(queued.group) for queued in collected.queued] == [1, 1]


def test_a_crash_before_the_checkpoint_replays_exactly_the_same_groups(scene: Scene) -> None:
    scene.make(max_round=0, step=0, count=2)
    first = scene.collector().collect(0)
    restarted = scene.collector()
    restarted.open(step=0)
    second = restarted.collect(0)
    assert first is not None
    assert second is not None
    assert [q.group for q in first.queued] == [q.group for q in second.queued]


def test_groups_of_rounds_that_the_checkpoint_holds_are_removed_on_opening(scene: Scene) -> None:
    scene.make(max_round=0, step=0, count=2)
    restarted = scene.collector()
    restarted.open(step=1)
    assert scene.queue().depth() == 0


def test_groups_of_an_abandoned_history_are_made_again_on_opening(scene: Scene) -> None:
    scene.make(max_round=0, step=0, count=2)
    scene.make(max_round=1, step=1, count=2)  # made by version 1, which the crash takes back
    restarted = scene.collector()
    restarted.open(step=0)
    assert scene.ledger.round_state(1).num_rejected == {"abandoned_history": 2}
    assert restarted.collect(0) is not None
    scene.make(max_round=1, step=1, count=2)
    assert restarted.collect(1) is not None


def test_a_surplus_group_of_a_lost_lease_is_counted_and_not_trained(scene: Scene) -> None:
    scene.make(max_round=0, step=0, count=2)
    scene.queue().push(make_group(round_=0, position=7, step=0))
    collector = scene.collector()
    collected = collector.collect(0)
    assert collected is not None
    assert [queued.group.position for queued in collected.queued] == [0, 1]
    assert collected.state.num_rejected == {"late": 1}
    assert scene.queue().depth() == 2
    # one that comes after its round was collected is counted with the next round
    scene.queue().push(make_group(round_=0, position=8, step=0))
    scene.make(max_round=1, step=1, count=2)
    collected = collector.collect(1)
    assert collected is not None
    assert [queued.group.position for queued in collected.queued] == [2, 3]
    assert collected.state.num_rejected == {"late": 1}
    assert scene.queue().depth() == 4


def test_a_late_group_of_an_abandoned_history_takes_no_prompt_back(scene: Scene) -> None:
    scene.make(max_round=0, step=0, count=2)
    scene.queue().push(make_group(round_=0, position=7, step=3))
    collector = scene.collector()
    collector.open(step=0)
    assert scene.ledger.round_state(0).num_rejected == {}
    collected = collector.collect(0)
    assert collected is not None
    assert collected.state.num_rejected == {"late": 1}
