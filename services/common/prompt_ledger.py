"""The prompt ledger: which prompts are out, and how far each round of generation has come.

A round is the groups for one training step. The ledger hands out prompt positions (0, 1, 2, … in the run's endless
prompt order) under leases and counts what became of them. A round is complete when `groups_per_round` groups were
accepted, or when `max_prompts_per_round` prompts were spent on it and none is out any more.

Over-sampling starts `over_sampling_prompts` further prompts before any group of the round is dropped. Prompts that are
still out when the round is full are its surplus: their leases end, and later rounds lease them before new positions.
"""

import math
from dataclasses import dataclass, field
from typing import Protocol

from services.common.errors import InvalidInputError


@dataclass(frozen=True, kw_only=True)
class PromptLease:
    """The right and duty to turn one prompt into a group."""

    lease_id: str
    """Handle for settling."""
    round: int
    """The training step the group is for."""
    position: int
    """Position in the prompt order."""


@dataclass(frozen=True, kw_only=True)
class RoundState:
    """How far a round has come."""

    round: int
    """The training step."""
    num_accepted: int
    """Groups in the sample queue (or already trained) for this round."""
    num_leased: int
    """Prompts out at the moment."""
    num_spent: int
    """Prompts handed out for the round so far and not returned."""
    num_dropped: dict[str, int] = field(default_factory=dict)
    """Groups dropped, by reason."""
    num_rejected: dict[str, int] = field(default_factory=dict)
    """Accepted groups that the trainer refused later, by reason."""
    accepted_positions: tuple[int, ...] = ()
    """Positions of the accepted groups, ascending. The groups to train on once the round is complete: a worker whose
    lease ran out may have left one more in the queue."""
    reward_sum: float = 0.0
    """Sum of rewards over all settled samples, dropped groups included."""
    num_samples: int = 0
    """Settled samples, dropped groups included."""
    num_surplus: int = 0
    """Prompts that were open when the round became full and went on to later rounds."""
    is_complete: bool = False
    """No further group will come for this round."""


class PromptLedger(Protocol):
    """Leases prompts; every operation is atomic and survives a crash of any client.

    Invariants: a position is out under at most one lease; a position whose lease expires or is returned stays with
    its round while that is open, and is leased again before any further one of that round; refill is exact: never
    more prompts start than `num_prompts_to_start`; accepted + dropped + out never exceed `max_prompts_per_round`.

    A round never accepts more than `groups_per_round` groups. Its surplus is leased again in later rounds only, lowest
    position first and before new positions, so that a group which was pushed too late keeps an id of its own.

    A worker pushes a group before it settles it as accepted, so that an accepted group is always in the queue.
    """

    def lease(self, *, worker: str, max_round: int, max_prompts: int) -> list[PromptLease]:
        """Leases for the lowest incomplete rounds up to max_round; may be fewer than asked for, or none.

        Takes back every expired lease first. Until that happens an expired lease can still be settled.
        """
        ...

    def settle_accepted(self, lease: PromptLease, *, rewards: list[float]) -> bool:
        """Counts the group as accepted. False when the lease is no longer held (the caller's group is void).

        The group that fills the round ends every other lease of it.
        """
        ...

    def settle_dropped(self, lease: PromptLease, *, reason: str, rewards: list[float]) -> bool:
        """Counts the group as dropped for the reason and spends the prompt. False when the lease is not held."""
        ...

    def no_longer_held(self, leases: list[PromptLease]) -> list[PromptLease]:
        """Those whose group would be void: their round is full, or they were settled, returned or taken back."""
        ...

    def give_back(self, leases: list[PromptLease]) -> None:
        """Returns prompts unspent, to be leased again first. Leases no longer held are ignored."""
        ...

    def give_back_all(self, *, worker: str) -> int:
        """Returns every prompt the worker holds and counts them. A worker that starts again calls this first."""
        ...

    def reject(self, *, round_: int, position: int, reason: str) -> bool:
        """The trainer refuses a queued group (too old, or from an abandoned history): the round is open again and the
        prompt is leased again first.

        A group is queued before it is settled. When it is refused in between, its lease is ended, so that it cannot be
        accepted without being queued. False, and nothing is done, when the position is neither accepted nor leased in
        the round. The sums of rewards and samples keep what the refused group added: they tell what was generated, not
        what was trained. Use `reject_group` of group_rejection.py, which also makes the group id pushable again.
        """
        ...

    def round_state(self, round_: int) -> RoundState:
        """How far the round has come. A round never touched is all zeros."""
        ...


def is_round_complete(
    *, num_accepted: int, num_dropped: int, num_open: int, groups_per_round: int, max_prompts_per_round: int
) -> bool:
    """Whether no further group will come, with num_open prompts out or waiting to be leased again."""
    is_short = num_accepted < groups_per_round
    may_refill = num_accepted + num_dropped < max_prompts_per_round
    return num_open == 0 and not (is_short and may_refill)


def num_prompts_to_start(
    *,
    num_accepted: int,
    num_dropped: int,
    num_open: int,
    groups_per_round: int,
    over_sampling_prompts: int,
    max_prompts_per_round: int,
) -> int:
    """How many further prompts a round may start, with num_open out or waiting to be leased again.

    As many as groups may still be missing if every open one is accepted; beyond that only what is left of the
    over-sampling, of which each dropped group uses up one. None when the round is full.

    Example: 32 groups with 16 over-sampled start 48 prompts. With 20 accepted and 10 dropped 18 are open and 12 groups
    missing, so none starts; with 20 accepted and 17 dropped 11 are open, so one starts.
    """
    num_missing = groups_per_round - num_accepted
    if num_missing <= 0:
        return 0
    num_wanted = max(num_missing, num_missing + over_sampling_prompts - num_dropped)
    return max(0, min(num_wanted, max_prompts_per_round - num_accepted - num_dropped) - num_open)


def check_rewards(rewards: list[float]) -> float:
    """The sum of the rewards.

    Raises:
        InvalidInputError: one is no finite number.
    """
    total = math.fsum(rewards) if all(math.isfinite(reward) for reward in rewards) else math.nan
    if not math.isfinite(total):
        raise InvalidInputError(f"rewards are {rewards}, but finite numbers are wanted; check the grader")
    return total
