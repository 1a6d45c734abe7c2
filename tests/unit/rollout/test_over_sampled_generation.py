"""The generation loop with over-sampled rounds: what is started, stopped, carried over and trained."""

import asyncio
import threading
from collections.abc import Callable, Sequence

import pytest

from services.common.errors import ShortRoundError
from services.common.memory_sample_queue import MemorySampleQueue
from services.rollout.engine import EngineResponse, SamplingParameters
from services.rollout.fake_engine import FakeEngine
from services.trainer.claiming import RoundCollector
from tests.unit.rollout.generation_scene import END, Scene, half_right, respond


class HeldBackEngine(FakeEngine):
    """Ends the responses to a position once `may_end` says so; counts the generations that were stopped."""

    def __init__(self, may_end: Callable[[int], bool]) -> None:
        super().__init__(respond=respond, end_token_id=END)
        self.may_end = may_end
        self.num_started = 0
        self.num_stopped = 0

    async def generate(
        self, prompt_token_ids: Sequence[int], *, sampling: SamplingParameters, num_samples: int
    ) -> list[EngineResponse]:
        self.num_started += 1
        try:
            while not self.may_end(prompt_token_ids[1] - 10):
                await asyncio.sleep(0.01)
            return await super().generate(prompt_token_ids, sampling=sampling, num_samples=num_samples)
        except asyncio.CancelledError:
            self.num_stopped += 1
            raise


def over_sampled(
    engine: FakeEngine | None = None, *, max_groups_in_flight: int = 8, beside: Scene | None = None
) -> Scene:
    """Two groups a round, two prompts over-sampled, six prompts at most."""
    return Scene(
        max_prompts_per_round=6,
        over_sampling_prompts=2,
        max_groups_in_flight=max_groups_in_flight,
        engine=engine,
        beside=beside,
    )


def wait_for(event: threading.Event) -> None:
    assert event.wait(timeout=5)


def collected_positions(scene: Scene, round_: int) -> list[int]:
    """What the trainer takes of a complete round."""
    collector = RoundCollector(
        queue=MemorySampleQueue(run_id="run", max_groups=100, state=scene.state),
        ledger=scene.ledger,
        max_lag_versions=0,
        min_groups=2,
        timeout_seconds=1.0,
        should_stop=lambda: False,
    )
    collector.open(step=round_)
    collected = collector.collect(round_)
    assert collected is not None
    return [queued.group.position for queued in collected.queued]


async def test_groups_in_flight_replace_dropped_ones_without_a_further_prompt() -> None:
    # 12 prompts start for 8 groups. Two are dropped before the round can be full, and two are never done.
    engine = HeldBackEngine(lambda position: position < 9)
    scene = Scene(
        lambda label, response: 1.0 if label in {"3", "5"} else half_right(label, response),
        groups_per_round=8,
        max_prompts_per_round=16,
        over_sampling_prompts=4,
        max_groups_in_flight=12,
        engine=engine,
    )
    engine.may_end = lambda position: (
        position < 9 or (position == 9 and scene.ledger.round_state(0).num_dropped == {"equal_rewards": 2})
    )
    await scene.commit(0)
    await scene.run_until(lambda: scene.is_complete(0))
    state = scene.ledger.round_state(0)
    assert (state.num_accepted, state.num_dropped, state.num_surplus) == (8, {"equal_rewards": 2}, 2)
    assert (state.num_spent + state.num_surplus, engine.num_started) == (12, 12)
    assert scene.queued() == [(0, position) for position in (0, 1, 2, 4, 6, 7, 8, 9)]


async def test_a_dropped_group_that_nothing_in_flight_replaces_starts_exactly_one_prompt() -> None:
    # Positions 0 to 8 start for 8 groups; two are dropped, the over-sampled one replaces the first of them.
    scene = Scene(
        lambda label, response: 1.0 if label in {"3", "5"} else half_right(label, response),
        groups_per_round=8,
        max_prompts_per_round=16,
        over_sampling_prompts=1,
        max_groups_in_flight=12,
    )
    await scene.commit(0)
    await scene.run_until(lambda: scene.is_complete(0))
    state = scene.ledger.round_state(0)
    assert (state.num_accepted, state.num_dropped, state.num_surplus) == (8, {"equal_rewards": 2}, 0)
    assert scene.queued() == [(0, position) for position in (0, 1, 2, 4, 6, 7, 8, 9)]


async def test_refills_of_over_sampled_rounds_end_in_the_clear_error() -> None:
    scene = Scene(lambda label, response: 0.0, max_prompts_per_round=6, over_sampling_prompts=2)
    await scene.commit(0)
    await scene.run_until(lambda: scene.is_complete(0))
    state = scene.ledger.round_state(0)
    assert (state.num_accepted, state.num_spent, state.num_samples) == (0, 6, 12)
    with pytest.raises(ShortRoundError, match=r"round 0 has 0 of 2 groups after 6 prompts \(6 equal_rewards dropped\)"):
        collected_positions(scene, 0)


async def test_surplus_is_stopped_at_once_and_generated_anew_under_the_next_version() -> None:
    engine = HeldBackEngine(lambda position: position in {1, 3})
    scene = over_sampled(engine)
    await scene.commit(0)
    await scene.run_until(lambda: engine.num_stopped == 2 and scene.tally.figures().num_groups_dropped != {})
    assert scene.queued() == [(0, 1), (0, 3)]
    assert (engine.num_started, engine.num_stopped) == (4, 2)
    assert scene.tally.figures().num_groups_dropped == {"surplus": 2}
    assert scene.tally.figures().num_groups_pushed == 2
    assert collected_positions(scene, 0) == [1, 3]

    engine.may_end = lambda position: position in {0, 2}
    await scene.commit(1)
    await scene.run_until(lambda: scene.is_complete(1))
    assert collected_positions(scene, 1) == [0, 2]
    claimed = MemorySampleQueue(run_id="run", max_groups=9, state=scene.state).claim(max_groups=9, timeout_seconds=0)
    steps = {q.group.position: {s.version_spans[0].step for s in q.group.samples} for q in claimed}
    assert steps == {0: {1}, 2: {1}}
    assert scene.ledger.round_state(1).num_surplus == 2


async def test_surplus_of_another_replica_is_stopped_as_well() -> None:
    stuck_engine = HeldBackEngine(lambda position: False)
    stuck = over_sampled(stuck_engine, max_groups_in_flight=2)
    quick = over_sampled(beside=stuck)
    await stuck.commit(0)
    await quick.commit(0)
    task = asyncio.create_task(stuck.loop.run())
    async with asyncio.timeout(5):
        while stuck_engine.num_started < 2:
            await asyncio.sleep(0.01)
    await quick.run_until(lambda: stuck.tally.figures().num_groups_dropped == {"surplus": 2})
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert stuck_engine.num_stopped == 2
    assert collected_positions(stuck, 0) == [2, 3]


async def test_a_surplus_group_that_was_pushed_too_late_is_counted_and_not_trained() -> None:
    engine = HeldBackEngine(lambda position: position < 3)
    scene = over_sampled(engine)
    is_full = threading.Event()
    scene.queue.gate = lambda group: None if group.position else wait_for(is_full)
    await scene.commit(0)

    def is_done() -> bool:
        if scene.is_complete(0):
            is_full.set()
        return scene.tally.figures().num_groups_dropped == {"surplus": 1, "late": 1}

    await scene.run_until(is_done)
    assert scene.queued() == [(0, 0), (0, 1), (0, 2)]
    assert collected_positions(scene, 0) == [1, 2]
    assert scene.queue.depth() == 2
    # Its prompt is made again for the next round, under another id, and trained there once.
    engine.may_end = lambda position: position in {0, 3}
    await scene.commit(1)
    await scene.run_until(lambda: scene.is_complete(1))
    assert collected_positions(scene, 1) == [0, 3]


async def test_a_void_group_that_was_never_queued_is_surplus() -> None:
    # Position 0 has equal rewards, and is settled only after its lease has gone back.
    engine = HeldBackEngine(lambda position: False)
    scene = Scene(
        lambda label, response: 1.0 if label == "0" else half_right(label, response),
        max_groups_in_flight=1,
        engine=engine,
    )
    leases: list[int] = []

    def may_end(position: int) -> bool:
        if position == 0 and not leases:
            leases.append(scene.ledger.give_back_all(worker="rollout-0"))
        return True

    engine.may_end = may_end
    await scene.commit(0)
    await scene.run_until(lambda: scene.is_complete(0))
    assert leases == [1]
    assert scene.tally.figures().num_groups_dropped == {"surplus": 1, "equal_rewards": 1}


async def test_without_over_sampling_nothing_is_stopped() -> None:
    engine = HeldBackEngine(lambda position: position in {0, 1})
    scene = Scene(engine=engine, max_groups_in_flight=8)
    await scene.commit(0)
    await scene.run_until(lambda: scene.is_complete(0))
    assert (engine.num_started, engine.num_stopped) == (2, 0)
    assert scene.ledger.round_state(0).num_surplus == 0
