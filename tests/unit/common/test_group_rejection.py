"""Queue and ledger together: what a crash may and may not do to a round."""

import pytest

from services.common.group_rejection import reject_group
from services.common.memory_prompt_ledger import MemoryPromptLedger
from services.common.memory_sample_queue import MemoryQueueState, MemorySampleQueue
from services.common.records import Group, group_id
from services.common.redis_prompt_ledger import RedisPromptLedger
from services.common.redis_sample_queue import RedisSampleQueue

NUM_GROUPS = 3


@pytest.fixture(params=["memory", "redis"])
def pair(request, run_id):
    """The run's ledger and a function that opens its queue."""
    shape = {"groups_per_round": NUM_GROUPS, "max_prompts_per_round": 6, "lease_seconds": 60.0}
    if request.param == "memory":
        state = MemoryQueueState()
        ledger = MemoryPromptLedger(run_id=run_id, clock=lambda: 0.0, **shape)
        return ledger, lambda: MemorySampleQueue(run_id=run_id, max_groups=50, state=state)
    client = request.getfixturevalue("redis_client")
    ledger = RedisPromptLedger(client, run_id=run_id, **shape)
    return ledger, lambda: RedisSampleQueue(client, run_id=run_id, max_groups=50)


def generate(ledger, queue, run_id, *, max_round):
    """What a rollout does: lease, generate, push, settle."""
    leases = ledger.lease(worker="a", max_round=max_round, max_prompts=50)
    for held in leases:
        name = group_id(run_id=run_id, round_=held.round, position=held.position)
        group = Group(
            group_id=name, round=held.round, position=held.position, prompt_token_ids=(held.position,), samples=()
        )
        queue.push(group)
        assert ledger.settle_accepted(held, rewards=[1.0])
    return [(held.round, held.position) for held in leases]


def claim_all(queue):
    return queue.claim(max_groups=50, timeout_seconds=0)


def places(claimed):
    return [(queued.group.round, queued.group.position) for queued in claimed]


def test_crash_between_step_and_checkpoint_replays_exactly_the_rounds_after_the_checkpoint(pair, run_id):
    ledger, open_queue = pair
    producer, trainer = open_queue(), open_queue()
    generate(ledger, producer, run_id, max_round=2)
    claimed = claim_all(trainer)
    # The checkpoint after step 0; rounds 1 and 2 are trained, too, and the trainer dies before their checkpoint.
    trainer.acknowledge([queued.entry_id for queued in claimed if queued.group.round == 0])
    resumed = open_queue()
    assert places(claim_all(resumed)) == [(1, 3), (1, 4), (1, 5), (2, 6), (2, 7), (2, 8)]
    assert claim_all(resumed) == []
    assert [ledger.round_state(round_).is_complete for round_ in range(4)] == [True, True, True, False]
    assert generate(ledger, producer, run_id, max_round=2) == []


def test_rejected_group_is_generated_and_delivered_again_once(pair, run_id):
    ledger, open_queue = pair
    producer, trainer = open_queue(), open_queue()
    generate(ledger, producer, run_id, max_round=0)
    first, stale, last = claim_all(trainer)
    assert reject_group(stale, queue=trainer, ledger=ledger, reason="stale")
    assert not reject_group(stale, queue=trainer, ledger=ledger, reason="stale")
    assert not ledger.round_state(0).is_complete
    assert generate(ledger, producer, run_id, max_round=0) == [(0, 1)]
    assert places(claim_all(trainer)) == [(0, 1)]
    state = ledger.round_state(0)
    assert (state.is_complete, state.num_rejected) == (True, {"stale": 1})
    assert trainer.depth() == NUM_GROUPS
    trainer.acknowledge([first.entry_id, last.entry_id])
    assert places(claim_all(open_queue())) == [(0, 1)]


def test_group_refused_between_its_push_and_its_settlement_is_made_again(pair, run_id):
    """Otherwise the ledger would accept a group that no queue holds, and the trainer would wait for it in vain."""
    ledger, open_queue = pair
    producer, trainer = open_queue(), open_queue()
    [held] = ledger.lease(worker="a", max_round=0, max_prompts=1)
    name = group_id(run_id=run_id, round_=0, position=0)
    producer.push(Group(group_id=name, round=0, position=0, prompt_token_ids=(0,), samples=()))
    assert reject_group(claim_all(trainer)[0], queue=trainer, ledger=ledger, reason="too_old")
    assert not ledger.settle_accepted(held, rewards=[1.0])
    assert ledger.round_state(0).num_rejected == {"too_old": 1}
    assert generate(ledger, producer, run_id, max_round=0) == [(0, 0), (0, 1), (0, 2)]
    assert places(claim_all(trainer)) == [(0, 0), (0, 1), (0, 2)]
    assert ledger.round_state(0).is_complete


@pytest.mark.parametrize("num_calls_before_crash", [1, 2])
@pytest.mark.parametrize("is_regenerated_before_resume", [False, True])
def test_crash_inside_a_rejection_loses_and_repeats_nothing(
    pair, run_id, num_calls_before_crash, is_regenerated_before_resume
):
    ledger, open_queue = pair
    producer, trainer = open_queue(), open_queue()
    generate(ledger, producer, run_id, max_round=0)
    stale = claim_all(trainer)[1]
    trainer.release(stale)
    if num_calls_before_crash == 2:
        ledger.reject(round_=0, position=1, reason="stale")
    if is_regenerated_before_resume:
        generate(ledger, producer, run_id, max_round=0)

    resumed = open_queue()
    kept = []
    for queued in claim_all(resumed):
        if queued.entry_id == stale.entry_id:
            reject_group(queued, queue=resumed, ledger=ledger, reason="stale")
        else:
            kept.append(queued)
    generate(ledger, producer, run_id, max_round=0)
    kept += claim_all(resumed)
    assert sorted(places(kept)) == [(0, 0), (0, 1), (0, 2)]
    assert ledger.round_state(0).accepted_positions == (0, 1, 2)
    assert ledger.round_state(0).is_complete
    assert resumed.depth() == NUM_GROUPS


def test_group_of_a_lease_that_ran_out_is_told_apart_by_the_accepted_positions(pair, run_id):
    """The slow worker pushed, the quick one dropped the same prompt: one more group is queued than accepted."""
    ledger, open_queue = pair
    queue = open_queue()
    slow = ledger.lease(worker="slow", max_round=0, max_prompts=1)[0]
    queue.push(
        Group(
            group_id=group_id(run_id=run_id, round_=0, position=0),
            round=0,
            position=0,
            prompt_token_ids=(0,),
            samples=(),
        )
    )
    ledger.give_back_all(worker="slow")
    [quick] = ledger.lease(worker="quick", max_round=0, max_prompts=1)
    ledger.settle_dropped(quick, reason="equal_rewards", rewards=[0.0])
    assert not ledger.settle_accepted(slow, rewards=[1.0])
    generate(ledger, queue, run_id, max_round=0)
    state = ledger.round_state(0)
    assert state.is_complete
    assert state.accepted_positions == (1, 2, 3)
    assert places(claim_all(queue)) == [(0, 0), (0, 1), (0, 2), (0, 3)]
