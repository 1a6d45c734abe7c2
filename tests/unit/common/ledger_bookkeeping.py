"""What must hold of any prompt ledger, checked after each operation of a random trace."""

from hypothesis import strategies as st

from tests.unit.common.prompt_ledgers import places

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

    def __init__(self, make, *, groups, max_prompts, over_sampling):
        self.ledgers = make(groups=groups, max_prompts=max_prompts, over_sampling=over_sampling)
        self.ledger = self.ledgers.ledger
        self.groups, self.max_prompts, self.over_sampling = groups, max_prompts, over_sampling
        self.surplus, self.full = {}, set()
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
            if place not in self.returned:
                earlier = [position for position, round_ in self.surplus.items() if round_ < held.round]
                wanted = min(earlier, default=len(self.seen))
                assert held.position == wanted, "surplus of earlier rounds goes before new prompts, without a gap"
            self.returned.discard(place)
            self.surplus.pop(held.position, None)
            self.seen.add(held.position)
            self.held.append((held, worker))
        self.answers.append(places(leases))

    def accept(self, pick):
        self._settle(pick, lambda held: self.ledger.settle_accepted(held, rewards=[1.0, 0.5]), self._record_accepted)

    def _record_accepted(self, place):
        assert place[1] not in {position for _, position in self.accepted}, "no prompt is trained twice"
        self.accepted.add(place)
        if sum(round_ == place[0] for round_, _ in self.accepted) == self.groups:
            self.full.add(place[0])
            self._void([(held, worker) for held, worker in self.held if held.round == place[0]])
            surplus = {(round_, position) for round_, position in self.returned if round_ == place[0]}
            self.returned -= surplus
            self.surplus |= {position: round_ for round_, position in surplus}

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
        held = {(held.round, held.position): (held, worker) for held, worker in self.held}
        places = sorted(self.accepted | held.keys()) or [(0, pick)]
        round_, position = place = places[pick % len(places)]
        assert self.ledger.reject(round_=round_, position=position, reason="stale") == (
            place in self.accepted or place in held
        )
        if place in self.accepted:
            self.accepted.remove(place)
            self.returned.add(place)
        elif place in held:
            self._void([held[place]])

    def check(self):
        out = [held.position for held, _ in self.held]
        assert len(out) == len(set(out)), "a position is out under at most one lease"
        known = [*out, *self.surplus, *(position for _, position in [*self.accepted, *self.dropped, *self.returned])]
        assert sorted(known) == sorted(self.seen), "no prompt is lost or in two places"
        leases = [held for held, _ in self.held]
        assert self.ledger.no_longer_held(leases + self.void) == self.void
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
        missing = self.groups - len(accepted)
        further = 0 if round_ in self.full else max(0, self.over_sampling - dropped)
        assert leased + returned <= missing + (further if missing else 0), "exact refill"
        assert state.num_spent + returned <= self.max_prompts, "bounded refill"
        spent_all = state.num_spent == self.max_prompts and leased == 0
        assert state.is_complete == (len(accepted) == self.groups or spent_all)
        self.answers.append((state.reward_sum, state.num_samples))
