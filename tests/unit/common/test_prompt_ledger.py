"""One set of rules for both prompt ledgers, the second of them over a real Valkey."""

import threading
import time

import pytest

from services.common.errors import InvalidInputError
from services.common.prompt_ledger import PromptLease
from services.common.redis_prompt_ledger import RedisPromptLedger
from tests.unit.common.prompt_ledgers import lease, places


def test_positions_are_handed_out_in_order_and_never_past_the_round(make_ledgers):
    ledger = make_ledgers(groups=3, max_prompts=6).ledger
    assert places(lease(ledger, 2)) == [(0, 0), (0, 1)]
    assert places(lease(ledger, 2, worker="b")) == [(0, 2)]
    assert lease(ledger, 2) == []


def test_rounds_beyond_max_round_are_never_handed_out(make_ledgers):
    ledger = make_ledgers(groups=2, max_prompts=4).ledger
    assert lease(ledger, max_round=-1) == []
    first = lease(ledger, 10, max_round=0)
    for held in first:
        ledger.settle_accepted(held, rewards=[1.0])
    assert lease(ledger, 10, max_round=0) == []
    assert places(lease(ledger, 3, max_round=2)) == [(1, 2), (1, 3), (2, 4)]


def test_untouched_round_is_all_zeros(make_ledgers):
    state = make_ledgers(groups=2, max_prompts=4).ledger.round_state(5)
    assert (state.round, state.num_accepted, state.num_leased, state.num_spent) == (5, 0, 0, 0)
    assert (state.num_dropped, state.num_rejected, state.accepted_positions) == ({}, {}, ())
    assert (state.reward_sum, state.num_samples, state.is_complete) == (0.0, 0, False)


def test_accepted_groups_complete_the_round(make_ledgers):
    ledger = make_ledgers(groups=2, max_prompts=4).ledger
    first, second = lease(ledger)
    assert ledger.settle_accepted(second, rewards=[1.0, 0.5])
    state = ledger.round_state(0)
    assert (state.num_accepted, state.num_leased, state.num_spent, state.is_complete) == (1, 1, 2, False)
    assert ledger.settle_accepted(first, rewards=[0.0, 0.25])
    state = ledger.round_state(0)
    assert (state.num_accepted, state.num_leased, state.num_spent, state.is_complete) == (2, 0, 2, True)
    assert (state.accepted_positions, state.reward_sum, state.num_samples) == ((0, 1), 1.75, 4)


def test_a_drop_is_replaced_by_exactly_one_prompt(make_ledgers):
    ledger = make_ledgers(groups=32, max_prompts=64).ledger
    leases = lease(ledger)
    assert len(leases) == 32
    for held in leases[:31]:
        ledger.settle_accepted(held, rewards=[1.0])
    ledger.settle_dropped(leases[31], reason="equal_rewards", rewards=[0.0, 0.0])
    assert places(lease(ledger)) == [(0, 32)]
    assert lease(ledger) == []
    state = ledger.round_state(0)
    assert state.num_dropped == {"equal_rewards": 1}
    assert (state.num_accepted, state.num_leased, state.num_spent) == (31, 1, 33)
    assert (state.reward_sum, state.num_samples) == (31.0, 33)


def test_refill_is_bounded_and_a_short_round_completes(make_ledgers):
    ledger = make_ledgers(groups=2, max_prompts=4).ledger
    handed_out = 0
    while leases := lease(ledger):
        handed_out += len(leases)
        for held in leases:
            assert not ledger.round_state(0).is_complete
            ledger.settle_dropped(held, reason="equal_rewards", rewards=[1.0])
    assert handed_out == 4
    state = ledger.round_state(0)
    assert (state.num_accepted, state.num_spent, state.num_dropped) == (0, 4, {"equal_rewards": 4})
    assert state.is_complete
    assert places(lease(ledger, 1, max_round=1)) == [(1, 4)]


def test_returned_prompt_is_unspent_and_leased_again_first(make_ledgers):
    ledger = make_ledgers(groups=4, max_prompts=4).ledger
    leases = lease(ledger, 3)
    ledger.give_back([leases[2], leases[0]])
    ledger.give_back([leases[0]])
    state = ledger.round_state(0)
    assert (state.num_leased, state.num_spent, state.is_complete) == (1, 1, False)
    assert not ledger.settle_accepted(leases[0], rewards=[1.0])
    assert places(lease(ledger, 3, worker="b")) == [(0, 0), (0, 2), (0, 3)]


def test_restarted_worker_gets_rid_of_its_old_leases(make_ledgers):
    ledger = make_ledgers(groups=4, max_prompts=4).ledger
    lease(ledger, 2, worker="a")
    [other] = lease(ledger, 1, worker="ab")
    assert ledger.give_back_all(worker="a") == 2
    assert ledger.give_back_all(worker="a") == 0
    assert ledger.settle_accepted(other, rewards=[1.0])
    assert places(lease(ledger, 9, worker="c")) == [(0, 0), (0, 1), (0, 3)]


def test_expired_lease_goes_to_another_worker_and_its_late_settle_is_void(make_ledgers):
    ledgers = make_ledgers(groups=2, max_prompts=4)
    ledger = ledgers.ledger
    [slow] = lease(ledger, 1, worker="slow")
    assert places(lease(ledger, 1, worker="quick")) == [(0, 1)]
    ledgers.expire_all()
    again = lease(ledger, 9, worker="quick")
    assert places(again) == [(0, 0), (0, 1)]
    assert not ledger.settle_accepted(slow, rewards=[1.0])
    assert not ledger.settle_dropped(slow, reason="equal_rewards", rewards=[1.0])
    ledger.give_back([slow])
    state = ledger.round_state(0)
    assert (state.num_leased, state.num_spent, state.num_samples) == (2, 2, 0)
    assert ledger.settle_accepted(again[0], rewards=[1.0])


def test_lease_that_ran_out_can_be_settled_until_it_is_taken_back(make_ledgers):
    ledgers = make_ledgers(groups=1, max_prompts=1)
    [late] = lease(ledgers.ledger)
    ledgers.expire_all()
    assert ledgers.ledger.settle_accepted(late, rewards=[1.0])
    assert lease(ledgers.ledger) == []


def test_settling_twice_counts_once(make_ledgers):
    ledger = make_ledgers(groups=1, max_prompts=2).ledger
    [held] = lease(ledger)
    assert ledger.settle_accepted(held, rewards=[1.0])
    assert not ledger.settle_accepted(held, rewards=[1.0])
    assert not ledger.settle_dropped(held, reason="x", rewards=[1.0])
    assert not ledger.settle_accepted(PromptLease(lease_id="no#1", round=0, position=0), rewards=[])
    state = ledger.round_state(0)
    assert (state.num_accepted, state.reward_sum, state.num_samples, state.num_dropped) == (1, 1.0, 1, {})


def test_rejected_group_reopens_its_round_with_the_same_position(make_ledgers):
    ledger = make_ledgers(groups=1, max_prompts=1).ledger
    for round_ in range(3):
        [held] = lease(ledger, 1, max_round=2)
        assert (held.round, held.position) == (round_, round_)
        ledger.settle_accepted(held, rewards=[1.0])
    ledger.reject(round_=1, position=1, reason="stale")
    ledger.reject(round_=1, position=1, reason="stale")
    ledger.reject(round_=1, position=0, reason="stale")
    state = ledger.round_state(1)
    assert (state.num_accepted, state.num_spent, state.is_complete) == (0, 0, False)
    assert (state.num_rejected, state.num_dropped) == ({"stale": 1}, {})
    assert (state.reward_sum, state.num_samples) == (1.0, 1), "the sums tell what was generated"
    [again] = lease(ledger, 5, max_round=2)
    assert (again.round, again.position) == (1, 1)
    assert ledger.settle_accepted(again, rewards=[0.5])
    assert ledger.round_state(1).is_complete
    assert places(lease(ledger, 5, max_round=3)) == [(3, 3)]


def test_fresh_process_goes_on_where_the_run_was(make_ledgers):
    ledgers = make_ledgers(groups=3, max_prompts=6)
    first, second, third = lease(ledgers.ledger)
    ledgers.ledger.settle_accepted(first, rewards=[1.0])
    reopened = ledgers.reopen()
    assert lease(reopened) == []
    assert reopened.settle_dropped(second, reason="equal_rewards", rewards=[0.0])
    assert reopened.settle_accepted(third, rewards=[1.0])
    assert places(lease(reopened)) == [(0, 3)]


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_reward_that_is_no_number_is_refused_and_the_lease_stays(make_ledgers, bad):
    ledger = make_ledgers(groups=1, max_prompts=1).ledger
    [held] = lease(ledger)
    with pytest.raises(InvalidInputError, match="finite numbers are wanted"):
        ledger.settle_accepted(held, rewards=[1.0, bad])
    assert ledger.settle_accepted(held, rewards=[1e-9, 0.25])
    assert ledger.round_state(0).reward_sum == pytest.approx(0.250000001, abs=1e-15)


def test_no_position_is_out_twice_under_contention(make_ledgers):
    ledger = make_ledgers(groups=50, max_prompts=80).ledger
    taken, lock = [], threading.Lock()

    def work(worker):
        while leases := lease(ledger, 3, worker=worker):
            with lock:
                taken.extend(held.position for held in leases)
            for held in leases:
                ledger.settle_accepted(held, rewards=[1.0])

    threads = [threading.Thread(target=work, args=(f"worker-{index}",)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(taken) == list(range(50))
    assert ledger.round_state(0).accepted_positions == tuple(range(50))


def test_redis_leases_run_out_by_the_servers_clock(redis_client, run_id):
    ledger = RedisPromptLedger(
        redis_client, run_id=run_id, groups_per_round=1, max_prompts_per_round=1, lease_seconds=0.2
    )
    [held] = lease(ledger)
    assert lease(ledger) == []
    time.sleep(0.3)
    assert places(lease(ledger, worker="b")) == [(0, 0)]
    assert not ledger.settle_accepted(held, rewards=[1.0])
