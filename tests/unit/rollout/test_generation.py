"""The generation loop over fakes: rounds, refills, drops, returns and back-pressure."""

import asyncio
import math
from collections.abc import Sequence

import pytest

from services.common.errors import UnavailableError
from services.common.memory_sample_queue import MemorySampleQueue
from services.common.records import Score
from services.rollout.overlong import OverlongPenalty
from services.rollout.scoring import ResponseToScore
from services.rollout.staleness import newest_open_round
from tests.unit.rollout.generation_scene import END, RuleScorer, Scene, half_right


@pytest.mark.parametrize(
    ("version_step", "max_lag_versions", "num_rounds", "wanted"),
    [(0, 0, 10, 0), (3, 0, 10, 3), (3, 1, 10, 4), (9, 1, 10, 9), (10, 0, 10, 9)],
)
def test_the_newest_open_round(version_step: int, max_lag_versions: int, num_rounds: int, wanted: int) -> None:
    newest = newest_open_round(version_step=version_step, max_lag_versions=max_lag_versions, num_rounds=num_rounds)
    assert newest == wanted


async def test_on_policy_no_group_is_made_for_the_next_version() -> None:
    scene = Scene()
    await scene.commit(0)
    await scene.run_until(lambda: scene.is_complete(0))
    assert scene.queued() == [(0, 0), (0, 1)]
    await scene.commit(1)
    await scene.run_until(lambda: scene.is_complete(1))
    assert scene.queued() == [(0, 0), (0, 1), (1, 2), (1, 3)]


async def test_with_a_lag_of_one_the_next_round_is_filled_as_well_and_no_further_one() -> None:
    scene = Scene(max_lag_versions=1)
    await scene.commit(0)
    await scene.run_until(lambda: scene.is_complete(1))
    assert scene.queued() == [(0, 0), (0, 1), (1, 2), (1, 3)]


async def test_nothing_is_leased_before_the_first_version() -> None:
    scene = Scene()
    task = asyncio.create_task(scene.loop.run())
    await asyncio.sleep(0.2)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert scene.ledger.round_state(0).num_spent == 0


async def test_a_run_has_no_rounds_after_its_last() -> None:
    scene = Scene(max_lag_versions=5, num_rounds=2)
    await scene.commit(0)
    await scene.run_until(lambda: scene.is_complete(1))
    assert scene.queued() == [(0, 0), (0, 1), (1, 2), (1, 3)]
    assert scene.ledger.round_state(2).num_leased == 0


async def test_a_group_of_equal_rewards_is_dropped_and_exactly_one_prompt_replaces_it() -> None:
    scene = Scene(lambda label, response: 1.0 if label == "0" else half_right(label, response))
    await scene.commit(0)
    await scene.run_until(lambda: scene.is_complete(0))
    state = scene.ledger.round_state(0)
    assert (state.num_dropped, state.num_spent) == ({"equal_rewards": 1}, 3)
    assert scene.queued() == [(0, 1), (0, 2)]
    assert scene.tally.figures().num_groups_dropped == {"equal_rewards": 1}


async def test_refills_are_bounded_when_no_group_ever_carries_a_gradient() -> None:
    scene = Scene(lambda label, response: 0.0, max_prompts_per_round=4)
    await scene.commit(0)
    await scene.run_until(lambda: scene.is_complete(0))
    state = scene.ledger.round_state(0)
    assert (state.num_accepted, state.num_spent, state.num_samples) == (0, 4, 8)
    assert scene.queued() == []


async def test_one_dropped_group_of_256_costs_one_further_prompt_not_a_wave_of_them() -> None:
    scene = Scene(
        lambda label, response: 1.0 if label == "17" else half_right(label, response),
        groups_per_round=256,
        max_prompts_per_round=512,
        max_groups=300,
    )
    await scene.commit(0)
    await scene.run_until(lambda: scene.is_complete(0))
    state = scene.ledger.round_state(0)
    assert (state.num_accepted, state.num_dropped, state.num_spent) == (256, {"equal_rewards": 1}, 257)
    assert scene.tally.figures().num_samples == 2 * 257


async def test_a_group_with_a_nan_reward_is_dropped_with_its_reason_and_replaced() -> None:
    scene = Scene(
        lambda label, response: math.nan if label == "0" and response.startswith("21") else half_right(label, response)
    )
    await scene.commit(0)
    await scene.run_until(lambda: scene.is_complete(0))
    state = scene.ledger.round_state(0)
    assert state.num_dropped == {"non_finite_reward": 1}
    assert (state.reward_sum, state.num_samples) == (3.0, 5)  # three groups of one right; the NaN counts nowhere
    assert scene.queued() == [(0, 1), (0, 2)]


async def test_long_responses_lose_reward_before_groups_are_judged() -> None:
    # All are right; sample 0 has 2 tokens of at most 4, sample 1 has 3. A buffer of 2 takes half of the factor.
    scene = Scene(
        lambda label, response: 1.0,
        penalty=OverlongPenalty(max_new_tokens=4, buffer_tokens=2, factor=0.5),
        answer=lambda prompt, step, sample: (20, END) if sample == 0 else (20, 20, END),
    )
    await scene.commit(0)
    await scene.run_until(lambda: scene.is_complete(0))
    claimed = MemorySampleQueue(run_id="run", max_groups=100, state=scene.state).claim(max_groups=9, timeout_seconds=0)
    assert [[sample.reward for sample in item.group.samples] for item in claimed] == [[1.0, 0.75], [1.0, 0.75]]
    assert scene.ledger.round_state(0).reward_sum == 3.5


@pytest.mark.parametrize(("filter_truncated", "dropped"), [(True, {"all_truncated": 4}), (False, {})])
async def test_a_group_of_truncated_responses_is_dropped_when_the_trainer_leaves_them_out(
    filter_truncated: bool, dropped: dict[str, int]
) -> None:
    scene = Scene(
        lambda label, response: float(response.startswith("20")),
        filter_truncated=filter_truncated,
        answer=lambda prompt, step, sample: (20 + sample % 2,) * 9,
        require_end_token=False,
    )
    await scene.commit(0)
    await scene.run_until(lambda: scene.is_complete(0))
    assert scene.ledger.round_state(0).num_dropped == dropped


async def test_a_failing_grader_ends_the_loop_and_gives_its_prompts_back() -> None:
    class GoneScorer(RuleScorer):
        def score_batch(self, items: Sequence[ResponseToScore]) -> list[Score]:
            raise UnavailableError("reward service: UNAVAILABLE")

    scene = Scene(scorer=GoneScorer(half_right))
    await scene.commit(0)
    with pytest.raises(UnavailableError):
        await scene.run_until(lambda: False)
    state = scene.ledger.round_state(0)
    assert (state.num_leased, state.num_accepted, state.num_spent) == (0, 0, 0)


async def test_a_cancelled_loop_gives_back_what_it_was_making() -> None:
    scene = Scene(seconds_per_token=30.0)
    await scene.commit(0)
    await scene.run_until(lambda: scene.ledger.round_state(0).num_leased == 2)
    assert scene.ledger.round_state(0).num_leased == 0


async def test_a_full_queue_holds_generation_back_and_loses_nothing() -> None:
    scene = Scene(max_groups=1)
    await scene.commit(0)
    task = asyncio.create_task(scene.loop.run())
    async with asyncio.timeout(5):
        while scene.ledger.round_state(0).num_accepted < 1:
            await asyncio.sleep(0.01)
    consumer = MemorySampleQueue(run_id="run", max_groups=1, state=scene.state)
    (first,) = consumer.claim(max_groups=1, timeout_seconds=0)
    assert scene.ledger.round_state(0).num_accepted == 1
    consumer.acknowledge([first.entry_id])
    async with asyncio.timeout(5):
        while not scene.is_complete(0):
            await asyncio.sleep(0.01)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    (second,) = consumer.claim(max_groups=1, timeout_seconds=0)
    assert {first.group.position, second.group.position} == {0, 1}
