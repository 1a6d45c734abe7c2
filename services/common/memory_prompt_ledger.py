"""The prompt ledger in the memory of one process, for tests and dry runs."""

import itertools
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from services.common.prompt_ledger import (
    PromptLease,
    RoundState,
    check_rewards,
    is_round_complete,
    num_prompts_to_start,
)


@dataclass(frozen=True, kw_only=True)
class _HeldLease:
    lease: PromptLease
    worker: str
    expires_at: float


@dataclass
class _Round:
    num_leased: int = 0
    accepted: set[int] = field(default_factory=set)
    returned: set[int] = field(default_factory=set)
    dropped: Counter[str] = field(default_factory=Counter)
    rejected: Counter[str] = field(default_factory=Counter)
    reward_sum: float = 0.0
    num_samples: int = 0
    num_surplus: int = 0
    was_full: bool = False


class MemoryPromptLedger:
    """A PromptLedger whose state is a Python object. Safe to use from many threads."""

    def __init__(
        self,
        *,
        run_id: str,
        groups_per_round: int,
        max_prompts_per_round: int,
        lease_seconds: float,
        clock: Callable[[], float],
        over_sampling_prompts: int = 0,
    ) -> None:
        """An empty ledger; clock tells the time in seconds and never goes back."""
        self._run_id = run_id
        self._groups_per_round = groups_per_round
        self._max_prompts_per_round = max_prompts_per_round
        self._over_sampling_prompts = over_sampling_prompts
        self._lease_seconds = lease_seconds
        self._clock = clock
        self._lock = threading.Lock()
        self._held: dict[str, _HeldLease] = {}
        self._rounds: dict[int, _Round] = {}
        self._surplus: dict[int, int] = {}
        """Round that a surplus position was last in, by position."""
        self._positions = itertools.count()
        self._lease_numbers = itertools.count(1)
        self._first_open = 0

    def lease(self, *, worker: str, max_round: int, max_prompts: int) -> list[PromptLease]:
        """See PromptLedger.lease."""
        with self._lock:
            self._take_back_expired()
            leases: list[PromptLease] = []
            round_ = self._first_open
            while round_ <= max_round and len(leases) < max_prompts:
                if self._is_complete(round_):
                    self._first_open += round_ == self._first_open
                else:
                    leases += self._fill(round_, worker=worker, max_prompts=max_prompts - len(leases))
                round_ += 1
            return leases

    def settle_accepted(self, lease: PromptLease, *, rewards: list[float]) -> bool:
        """See PromptLedger.settle_accepted."""
        reward_sum = check_rewards(rewards)
        with self._lock:
            if not self._end(lease.lease_id):
                return False
            state = self._round(lease.round)
            state.accepted.add(lease.position)
            state.reward_sum += reward_sum
            state.num_samples += len(rewards)
            if len(state.accepted) >= self._groups_per_round:
                self._end_full(lease.round)
            return True

    def settle_dropped(self, lease: PromptLease, *, reason: str, rewards: list[float]) -> bool:
        """See PromptLedger.settle_dropped."""
        reward_sum = check_rewards(rewards)
        with self._lock:
            if not self._end(lease.lease_id):
                return False
            state = self._round(lease.round)
            state.dropped[reason] += 1
            state.reward_sum += reward_sum
            state.num_samples += len(rewards)
            return True

    def no_longer_held(self, leases: list[PromptLease]) -> list[PromptLease]:
        """See PromptLedger.no_longer_held."""
        with self._lock:
            return [lease for lease in leases if lease.lease_id not in self._held]

    def give_back(self, leases: list[PromptLease]) -> None:
        """See PromptLedger.give_back."""
        with self._lock:
            for lease in leases:
                self._return(lease)

    def give_back_all(self, *, worker: str) -> int:
        """See PromptLedger.give_back_all."""
        with self._lock:
            mine = [held.lease for held in self._held.values() if held.worker == worker]
            for lease in mine:
                self._return(lease)
            return len(mine)

    def reject(self, *, round_: int, position: int, reason: str) -> bool:
        """See PromptLedger.reject."""
        with self._lock:
            state = self._round(round_)
            if position not in state.accepted and not self._end_lease_of(round_, position):
                return False
            state.accepted.discard(position)
            state.returned.add(position)
            state.rejected[reason] += 1
            self._first_open = min(self._first_open, round_)
            return True

    def round_state(self, round_: int) -> RoundState:
        """See PromptLedger.round_state."""
        with self._lock:
            state = self._round(round_)
            return RoundState(
                round=round_,
                num_accepted=len(state.accepted),
                num_leased=state.num_leased,
                num_spent=len(state.accepted) + state.num_leased + state.dropped.total(),
                num_dropped=dict(state.dropped),
                num_rejected=dict(state.rejected),
                accepted_positions=tuple(sorted(state.accepted)),
                reward_sum=state.reward_sum,
                num_samples=state.num_samples,
                num_surplus=state.num_surplus,
                is_complete=self._is_complete(round_),
            )

    def _round(self, round_: int) -> _Round:
        return self._rounds.setdefault(round_, _Round())

    def _is_complete(self, round_: int) -> bool:
        state = self._round(round_)
        return is_round_complete(
            num_accepted=len(state.accepted),
            num_dropped=state.dropped.total(),
            num_open=state.num_leased + len(state.returned),
            groups_per_round=self._groups_per_round,
            max_prompts_per_round=self._max_prompts_per_round,
        )

    def _take_back_expired(self) -> None:
        now = self._clock()
        for held in [held for held in self._held.values() if held.expires_at <= now]:
            self._return(held.lease)

    def _fill(self, round_: int, *, worker: str, max_prompts: int) -> list[PromptLease]:
        """Leases what the round needs: returned positions first, then surplus of earlier rounds, then new ones."""
        state = self._round(round_)
        num_new = num_prompts_to_start(
            num_accepted=len(state.accepted),
            num_dropped=state.dropped.total(),
            num_open=state.num_leased + len(state.returned),
            groups_per_round=self._groups_per_round,
            over_sampling_prompts=0 if state.was_full else self._over_sampling_prompts,
            max_prompts_per_round=self._max_prompts_per_round,
        )
        again = sorted(state.returned)[:max_prompts]
        state.returned.difference_update(again)
        positions = [*again, *self._take(round_, min(num_new, max_prompts - len(again)))]
        return [self._grant(round_, position, worker=worker) for position in positions]

    def _take(self, round_: int, num_positions: int) -> list[int]:
        """Positions that start in the round: surplus of earlier rounds, then new ones."""
        surplus = sorted(position for position, last in self._surplus.items() if last < round_)[:num_positions]
        for position in surplus:
            del self._surplus[position]
        return [*surplus, *itertools.islice(self._positions, num_positions - len(surplus))]

    def _end_full(self, round_: int) -> None:
        """Ends what is open in a full round; its prompts are surplus."""
        state = self._round(round_)
        state.was_full = True
        for held in [held for held in self._held.values() if held.lease.round == round_]:
            self._return(held.lease)
        self._surplus.update(dict.fromkeys(state.returned, round_))
        state.num_surplus += len(state.returned)
        state.returned.clear()

    def _grant(self, round_: int, position: int, *, worker: str) -> PromptLease:
        lease = PromptLease(lease_id=f"{worker}#{next(self._lease_numbers)}", round=round_, position=position)
        self._held[lease.lease_id] = _HeldLease(
            lease=lease, worker=worker, expires_at=self._clock() + self._lease_seconds
        )
        self._round(round_).num_leased += 1
        return lease

    def _end_lease_of(self, round_: int, position: int) -> bool:
        place = (round_, position)
        mine = [held.lease for held in self._held.values() if (held.lease.round, held.lease.position) == place]
        return any(self._end(lease.lease_id) for lease in mine)

    def _end(self, lease_id: str) -> bool:
        held = self._held.pop(lease_id, None)
        if held is None:
            return False
        self._round(held.lease.round).num_leased -= 1
        return True

    def _return(self, lease: PromptLease) -> None:
        if self._end(lease.lease_id):
            self._round(lease.round).returned.add(lease.position)
