"""One set of rules for both prompt ledgers, the second of them over a real Valkey."""

import threading
import time
import uuid

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from services.common.errors import InvalidInputError
from services.common.memory_prompt_ledger import MemoryPromptLedger
from services.common.prompt_ledger import PromptLease
from services.common.redis_prompt_ledger import RedisPromptLedger

LEASE_SECONDS = 60.0


class MemoryLedgers:
    """Ledgers of one run with a clock that moves on demand."""

    def __init__(self, *, groups, max_prompts):
        self._now = 0.0
        self.ledger = MemoryPromptLedger(
            run_id="run",
            groups_per_round=groups,
            max_prompts_per_round=max_prompts,
            lease_seconds=LEASE_SECONDS,
            clock=lambda: self._now,
        )

    def reopen(self):
        return self.ledger

    def expire_all(self):
        self._now += LEASE_SECONDS


class RedisLedgers:
    """Ledgers of one run, whose leases can be made to expire without waiting."""

    def __init__(self, client, *, groups, max_prompts):
        self._client, self._groups, self._max_prompts = client, groups, max_prompts
        self._run_id = f"run-{uuid.uuid4().hex[:8]}"
        self.ledger = self.reopen()

    def reopen(self):
        return RedisPromptLedger(
            self._client,
            run_id=self._run_id,
            groups_per_round=self._groups,
            max_prompts_per_round=self._max_prompts,
            lease_seconds=LEASE_SECONDS,
        )

    def expire_all(self):
        key = f"furlong:{self._run_id}:ledger:expiry"
        for lease_id in self._client.zrange(key, 0, -1):
            self._client.zadd(key, {lease_id: 1})


@pytest.fixture(params=["memory", "redis"])
def make_ledgers(request):
    if request.param == "memory":
        return MemoryLedgers
    client = request.getfixturevalue("redis_client")
    return lambda groups, max_prompts: RedisLedgers(client, groups=groups, max_prompts=max_prompts)


def lease(ledger, max_prompts=100, *, max_round=0, worker="a"):
    return ledger.lease(worker=worker, max_round=max_round, max_prompts=max_prompts)


def places(leases):
    return [(held.round, held.position) for held in leases]


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
    ledger.reject_accepted(round_=1, position=1, reason="stale")
    ledger.reject_accepted(round_=1, position=1, reason="stale")
    ledger.reject_accepted(round_=1, position=0, reason="stale")
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


# An operation and a number that picks what it works on.
operations = st.lists(
    st.tuples(
        st.sampled_from(
            ["lease", "lease", "lease", "accept", "accept", "drop", "give_back", "give_back_all", "expire", "reject"]
        ),
        st.integers(0, 7),
    ),
    min_size=25,
    max_size=80,
)


class Bookkeeping:
    """What must hold of any ledger, followed from its answers alone."""

    def __init__(self, ledgers, *, groups, max_prompts):
        self.ledgers, self.ledger = ledgers, ledgers.ledger
        self.groups, self.max_prompts = groups, max_prompts
        self.held, self.void = [], []
        self.accepted, self.dropped, self.returned = set(), [], set()
        self.seen, self.answers = set(), []

    def do(self, operation, pick):
        getattr(self, operation)(pick)
        self.check()

    def lease(self, pick):
        max_round, max_prompts, worker = pick % 3, 1 + pick % 4, f"w{pick % 2}"
        leases = self.ledger.lease(worker=worker, max_round=max_round, max_prompts=max_prompts)
        assert len(leases) <= max_prompts
        for held in leases:
            place = (held.round, held.position)
            assert held.round <= max_round
            waiting = {position for round_, position in self.returned if round_ == held.round}
            assert not waiting or held.position == min(waiting), "returned positions go first, lowest first"
            assert place in self.returned or held.position == len(self.seen), "the prompt order has no gap"
            self.returned.discard(place)
            self.seen.add(held.position)
            self.held.append((held, worker))
        self.answers.append(places(leases))

    def accept(self, pick):
        self._settle(pick, lambda held: self.ledger.settle_accepted(held, rewards=[1.0, 0.5]), self.accepted.add)

    def drop(self, pick):
        self._settle(
            pick, lambda held: self.ledger.settle_dropped(held, reason="r", rewards=[0.5]), self.dropped.append
        )

    def _settle(self, pick, settle, record):
        if self.void and pick >= 6:
            assert not settle(self.void[pick % len(self.void)])
        elif self.held:
            held, _ = self.held.pop(pick % len(self.held))
            assert settle(held)
            assert not settle(held)
            record((held.round, held.position))

    def give_back(self, pick):
        chosen = self.held[: pick % 3]
        self.ledger.give_back([held for held, _ in chosen] + self.void[:1])
        self._void(chosen)

    def give_back_all(self, pick):
        mine = [(held, worker) for held, worker in self.held if worker == f"w{pick % 2}"]
        assert self.ledger.give_back_all(worker=f"w{pick % 2}") == len(mine)
        self._void(mine)

    def expire(self, pick):
        self.ledgers.expire_all()
        self.answers.append(self.ledger.lease(worker="w0", max_round=-1, max_prompts=1))
        self._void(list(self.held))

    def _void(self, chosen):
        for held, worker in chosen:
            self.held.remove((held, worker))
            self.void.append(held)
            self.returned.add((held.round, held.position))

    def reject(self, pick):
        round_, position = sorted(self.accepted)[pick % len(self.accepted)] if self.accepted else (0, pick)
        self.ledger.reject_accepted(round_=round_, position=position, reason="stale")
        if (round_, position) in self.accepted:
            self.accepted.remove((round_, position))
            self.returned.add((round_, position))

    def check(self):
        out = [held.position for held, _ in self.held]
        assert len(out) == len(set(out)), "a position is out under at most one lease"
        for round_ in range(3):
            self._check_round(self.ledger.round_state(round_), round_)

    def _check_round(self, state, round_):
        accepted = sorted(position for other, position in self.accepted if other == round_)
        dropped = sum(other == round_ for other, _ in self.dropped)
        leased = sum(held.round == round_ for held, _ in self.held)
        returned = sum(other == round_ for other, _ in self.returned)
        assert state.accepted_positions == tuple(accepted)
        assert (state.num_accepted, state.num_leased) == (len(accepted), leased)
        assert state.num_spent == len(accepted) + dropped + leased
        assert sum(state.num_dropped.values()) == dropped
        assert leased + returned <= self.groups - len(accepted), "exact refill"
        assert state.num_spent + returned <= self.max_prompts, "bounded refill"
        spent_all = state.num_spent == self.max_prompts and leased == 0
        assert state.is_complete == (len(accepted) == self.groups or spent_all)
        self.answers.append((state.reward_sum, state.num_samples))


@given(trace=operations)
@settings(max_examples=300, deadline=None)
def test_any_trace_keeps_the_invariants_in_memory(trace):
    book = Bookkeeping(MemoryLedgers(groups=3, max_prompts=5), groups=3, max_prompts=5)
    for operation, pick in trace:
        book.do(operation, pick)


@given(trace=operations)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_trace_has_the_same_answers_in_redis_as_in_memory(redis_client, trace):
    in_memory = Bookkeeping(MemoryLedgers(groups=3, max_prompts=5), groups=3, max_prompts=5)
    in_redis = Bookkeeping(RedisLedgers(redis_client, groups=3, max_prompts=5), groups=3, max_prompts=5)
    for operation, pick in trace:
        in_memory.do(operation, pick)
        in_redis.do(operation, pick)
        assert in_redis.answers == in_memory.answers
