"""The prompt ledger: which prompts are out, and how far each round of generation has come.

A round is the groups for one training step. The ledger hands out prompt positions (0, 1, 2, … in the run's endless
prompt order) under leases and counts what became of them. A round is complete when `groups_per_round` groups were
accepted, or when `max_prompts_per_round` prompts were spent on it and none is out any more.
"""

from dataclasses import dataclass, field
from typing import Protocol


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
    reward_sum: float = 0.0
    """Sum of rewards over all settled samples, dropped groups included."""
    num_samples: int = 0
    """Settled samples, dropped groups included."""
    is_complete: bool = False
    """No further group will come for this round."""


class PromptLedger(Protocol):
    """Leases prompts; every operation is atomic and survives a crash of any client.

    Invariants: a position is out under at most one lease; a position whose lease expires or is returned is leased
    again before any later one; refill is exact: never more prompts out than groups missing from the round.
    """

    def lease(self, *, worker: str, max_round: int, max_prompts: int) -> list[PromptLease]:
        """Leases for the lowest incomplete rounds up to max_round; may be fewer than asked for, or none."""
        ...

    def settle_accepted(self, lease: PromptLease, *, rewards: list[float]) -> bool:
        """Counts the group as accepted. False when the lease is no longer held (the caller's group is void)."""
        ...

    def settle_dropped(self, lease: PromptLease, *, reason: str, rewards: list[float]) -> bool:
        """Counts the group as dropped for the reason and spends the prompt. False when the lease is not held."""
        ...

    def give_back(self, leases: list[PromptLease]) -> None:
        """Returns prompts unspent, to be leased again first. Leases no longer held are ignored."""
        ...

    def reject_accepted(self, *, round_: int, position: int, reason: str) -> None:
        """The trainer refuses an accepted group (too old, or from an abandoned history): the round is open again
        and the prompt is leased again first."""
        ...

    def round_state(self, round_: int) -> RoundState:
        """How far the round has come. A round never touched is all zeros."""
        ...
