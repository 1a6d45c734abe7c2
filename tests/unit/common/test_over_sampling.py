"""Rounds that start more prompts than they need, in both prompt ledgers."""

import pytest

from services.common.prompt_ledger import num_prompts_to_start
from tests.unit.common.prompt_ledgers import lease, places


@pytest.mark.parametrize(
    ("accepted", "dropped", "open_", "wanted"),
    [
        (0, 0, 0, 48),  # the first wave
        (0, 0, 40, 8),  # its rest, when a worker took part of it
        (1, 2, 45, 0),  # 45 open for 31 missing
        (20, 10, 18, 0),  # 18 open for 12 missing
        (20, 16, 12, 0),  # 12 open for 12 missing: the over-sampling is used up exactly
        (20, 17, 11, 1),  # one more drop starts exactly one
        (20, 40, 0, 4),  # 12 are missing, and 4 of at most 64 are left
        (0, 64, 0, 0),
        (32, 5, 0, 0),  # full
        (31, 33, 0, 0),  # short, with nothing left
    ],
)
def test_as_many_prompts_start_as_groups_may_be_missing(accepted, dropped, open_, wanted):
    started = num_prompts_to_start(
        num_accepted=accepted,
        num_dropped=dropped,
        num_open=open_,
        groups_per_round=32,
        over_sampling_prompts=16,
        max_prompts_per_round=64,
    )
    assert started == wanted


def test_over_sampling_starts_more_at_once_and_a_drop_with_enough_in_flight_starts_none(make_ledgers):
    ledger = make_ledgers(groups=32, max_prompts=64, over_sampling=16).ledger
    leases = lease(ledger)
    assert places(leases) == [(0, position) for position in range(48)]
    for held in leases[:16]:
        ledger.settle_dropped(held, reason="equal_rewards", rewards=[0.0])
        assert lease(ledger) == []
    # 32 are out for 32 missing groups: now each drop starts exactly one prompt.
    ledger.settle_dropped(leases[16], reason="equal_rewards", rewards=[0.0])
    assert places(lease(ledger)) == [(0, 48)]
    assert lease(ledger) == []
    assert ledger.round_state(0).num_spent == 49


def test_first_wave_is_shared_among_workers(make_ledgers):
    ledger = make_ledgers(groups=3, max_prompts=6, over_sampling=2).ledger
    assert places(lease(ledger, 4, worker="a")) == [(0, 0), (0, 1), (0, 2), (0, 3)]
    assert places(lease(ledger, 4, worker="b")) == [(0, 4)]


def test_over_sampled_refills_are_bounded_as_well(make_ledgers):
    ledger = make_ledgers(groups=2, max_prompts=4, over_sampling=1).ledger
    waves = []
    while leases := lease(ledger):
        waves.append(len(leases))
        for held in leases:
            ledger.settle_dropped(held, reason="equal_rewards", rewards=[1.0])
    assert waves == [3, 1]
    state = ledger.round_state(0)
    assert (state.is_complete, state.num_accepted, state.num_spent, state.num_surplus) == (True, 0, 4, 0)


def test_full_round_ends_its_other_leases_and_later_rounds_lease_them_first(make_ledgers):
    ledger = make_ledgers(groups=2, max_prompts=6, over_sampling=3).ledger
    leases = lease(ledger)
    ledger.give_back([leases[1]])
    assert ledger.settle_accepted(leases[4], rewards=[1.0])
    assert ledger.no_longer_held(leases) == [leases[1], leases[4]]
    assert ledger.settle_accepted(leases[2], rewards=[1.0])
    assert ledger.no_longer_held(leases) == leases
    assert ledger.no_longer_held([]) == []
    state = ledger.round_state(0)
    assert (state.num_accepted, state.num_leased, state.num_surplus, state.num_spent) == (2, 0, 3, 2)
    assert (state.is_complete, state.accepted_positions) == (True, (2, 4))
    assert lease(ledger) == []
    assert places(lease(ledger, 4, max_round=1)) == [(1, 0), (1, 1), (1, 3), (1, 5)]
    assert places(lease(ledger, 4, max_round=1)) == [(1, 6)]


def test_late_surplus_group_counts_nowhere_and_its_prompt_is_not_returned_twice(make_ledgers):
    ledger = make_ledgers(groups=1, max_prompts=3, over_sampling=2).ledger
    first, late, later = lease(ledger, worker="slow")
    assert ledger.settle_accepted(first, rewards=[1.0])
    assert not ledger.settle_accepted(late, rewards=[0.5])
    assert not ledger.settle_dropped(later, reason="equal_rewards", rewards=[0.5])
    ledger.give_back([late, later])
    assert ledger.give_back_all(worker="slow") == 0
    state = ledger.round_state(0)
    assert (state.accepted_positions, state.reward_sum, state.num_samples) == ((0,), 1.0, 1)
    assert (state.num_dropped, state.num_surplus) == ({}, 2)
    assert places(lease(ledger, max_round=1)) == [(1, 1), (1, 2), (1, 3)]


def test_surplus_of_a_killed_worker_is_leased_by_another_in_a_later_round(make_ledgers):
    ledgers = make_ledgers(groups=2, max_prompts=4, over_sampling=2)
    killed = lease(ledgers.ledger, 2, worker="killed")
    living = lease(ledgers.ledger, 9, worker="living")
    for held in living:
        assert ledgers.ledger.settle_accepted(held, rewards=[1.0])
    assert ledgers.ledger.round_state(0).is_complete
    ledgers.expire_all()
    restarted = ledgers.reopen()
    assert restarted.give_back_all(worker="killed") == 0
    again = lease(restarted, 9, max_round=1, worker="living")
    assert places(again) == [(1, 0), (1, 1), (1, 4), (1, 5)]
    assert restarted.no_longer_held(killed + again) == killed
    assert not restarted.settle_accepted(killed[0], rewards=[1.0])


def test_killed_worker_of_an_open_round_leaves_its_prompts_to_that_round(make_ledgers):
    ledgers = make_ledgers(groups=2, max_prompts=4, over_sampling=2)
    lease(ledgers.ledger, 4, worker="killed")
    ledgers.expire_all()
    assert places(lease(ledgers.ledger, 9, max_round=0, worker="living")) == [(0, 0), (0, 1), (0, 2), (0, 3)]


def test_one_refused_group_of_a_full_round_starts_one_prompt_and_no_over_sampling(make_ledgers):
    ledger = make_ledgers(groups=4, max_prompts=8, over_sampling=3).ledger
    leases = lease(ledger, 5)  # not the whole wave of 7
    for held in leases[:4]:
        ledger.settle_accepted(held, rewards=[1.0])
    ledger.reject(round_=0, position=1, reason="too_old")
    again = lease(ledger)
    assert places(again) == [(0, 1)]
    # Dropped this time, it is replaced by one prompt. The surplus of this very round is not taken: its group may have
    # been pushed under the id that it would get again.
    ledger.settle_dropped(again[0], reason="equal_rewards", rewards=[0.0])
    assert places(lease(ledger)) == [(0, 5)]
    assert lease(ledger) == []
    assert places(lease(ledger, 2, max_round=1)) == [(1, 4), (1, 6)]


def test_surplus_goes_to_the_next_round_that_is_open_already(make_ledgers):
    ledger = make_ledgers(groups=1, max_prompts=4, over_sampling=1).ledger
    both = lease(ledger, max_round=1)
    assert places(both) == [(0, 0), (0, 1), (1, 2), (1, 3)]
    ledger.settle_accepted(both[1], rewards=[1.0])
    assert lease(ledger, max_round=1) == []
    for held in both[2:]:
        ledger.settle_dropped(held, reason="equal_rewards", rewards=[0.0])
    assert places(lease(ledger, max_round=1)) == [(1, 0)]
