"""Collects the groups of a round from the queue, and refuses those that may not be trained."""

import logging
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from services.common.errors import DeadlineError, ShortRoundError
from services.common.group_rejection import reject_group
from services.common.prompt_ledger import PromptLedger, RoundState
from services.common.records import Group
from services.common.sample_queue import LATE, QueuedGroup, SampleQueue

logger = logging.getLogger(__name__)

TOO_OLD = "too_old"
ABANDONED = "abandoned_history"
_POLL_SECONDS = 0.2
_CLAIM_BATCH = 64


@dataclass(frozen=True, kw_only=True)
class CollectedRound:
    """A round that is ready to train on."""

    state: RoundState
    """The ledger's view of it. Under LATE, `num_rejected` has the groups that left the queue since the collected round
    before, and that no round lost by it."""
    queued: tuple[QueuedGroup, ...] = field(default=())
    """Its groups, in order of position, so that a replay trains in the same order."""


def lag_steps(group: Group) -> int:
    """Versions that the oldest token of a group is behind the policy of its round."""
    oldest = [sample.oldest_step for sample in group.samples if sample.oldest_step is not None]
    return group.round - min(oldest, default=group.round)


class RoundCollector:
    """The trainer's side of queue and ledger."""

    def __init__(
        self,
        *,
        queue: SampleQueue,
        ledger: PromptLedger,
        max_lag_versions: int,
        min_groups: int,
        timeout_seconds: float,
        should_stop: Callable[[], bool],
    ) -> None:
        """The collector.

        Args:
            min_groups: a round that is complete with fewer groups is an error; 0 accepts any.
        """
        self._queue = queue
        self._ledger = ledger
        self._max_lag_versions = max_lag_versions
        self._min_groups = min_groups
        self._timeout_seconds = timeout_seconds
        self._should_stop = should_stop
        self._held: defaultdict[int, dict[int, QueuedGroup]] = defaultdict(dict)
        self._num_late = 0

    def open(self, *, step: int) -> None:
        """Claims everything that waits in the queue and refuses what the history that ends at step does not know.

        Groups of rounds before step are in the checkpoint already; groups with tokens of a version after step come
        from a history that a crash took back.
        """
        while claimed := self._queue.claim(max_groups=_CLAIM_BATCH, timeout_seconds=0):
            for queued in claimed:
                newest = max((span.step for s in queued.group.samples for span in s.version_spans), default=0)
                if newest > step:
                    self._reject(queued, ABANDONED)
                else:
                    self._admit(queued, step=step)

    def collect(self, round_: int) -> CollectedRound | None:
        """The groups of a round once it is complete; None when the process is to stop.

        Raises:
            DeadlineError: the round did not become complete in time.
            ShortRoundError: it is complete with fewer than min_groups groups; its groups stay in the queue.
        """
        deadline = time.monotonic() + self._timeout_seconds
        while time.monotonic() < deadline:
            if self._should_stop():
                return None
            for queued in self._queue.claim(max_groups=_CLAIM_BATCH, timeout_seconds=_POLL_SECONDS):
                self._admit(queued, step=round_)
            state = self._ledger.round_state(round_)
            if state.is_complete:
                self._require_groups(state)
            held = self._held[round_]
            if state.is_complete and held.keys() >= set(state.accepted_positions):
                del self._held[round_]
                queued_groups = tuple(held[position] for position in state.accepted_positions)
                self._drop_surplus(held, state)
                return CollectedRound(state=self._with_late(state), queued=queued_groups)
        state = self._ledger.round_state(round_)
        raise DeadlineError(
            f"round {round_} has {state.num_accepted} accepted and {state.num_leased} leased prompts after "
            f"{self._timeout_seconds:.0f} s, wanted a complete round; see the rollout service's log or raise "
            "trainer.claim_timeout_seconds"
        )

    def acknowledge(self, queued: list[QueuedGroup], *, rounds_before: int) -> None:
        """Removes groups whose effect a checkpoint holds; rounds before rounds_before are over."""
        self._queue.acknowledge([item.entry_id for item in queued])
        self._queue.forget_rounds_before(rounds_before)

    def _require_groups(self, state: RoundState) -> None:
        if state.num_accepted < self._min_groups:
            dropped = ", ".join(f"{n} {reason}" for reason, n in sorted(state.num_dropped.items()))
            raise ShortRoundError(
                f"round {state.round} has {state.num_accepted} of {self._min_groups} groups after {state.num_spent} "
                f"prompts ({dropped} dropped); raise rollout.max_refills, use prompts the model solves sometimes, or "
                'set rollout.when_short="train_short"'
            )

    def _admit(self, queued: QueuedGroup, *, step: int) -> None:
        group = queued.group
        if group.round < step:
            self._queue.acknowledge([queued.entry_id])
            self._num_late += 1
        elif lag_steps(group) > self._max_lag_versions:
            self._reject(queued, TOO_OLD)
        else:
            self._held[group.round][group.position] = queued

    def _reject(self, queued: QueuedGroup, reason: str) -> None:
        logger.info("group refused", extra={"group_id": queued.group.group_id, "reason": reason})
        if not reject_group(queued, queue=self._queue, ledger=self._ledger, reason=reason):
            self._num_late += 1

    def _drop_surplus(self, held: dict[int, QueuedGroup], state: RoundState) -> None:
        """A worker whose lease ran out, or whose round was full, may have pushed a group that was not accepted."""
        surplus = held.keys() - set(state.accepted_positions)
        self._queue.acknowledge([held[position].entry_id for position in surplus])
        self._num_late += len(surplus)

    def _with_late(self, state: RoundState) -> RoundState:
        num_late, self._num_late = self._num_late, 0
        return replace(state, num_rejected={**state.num_rejected, LATE: num_late}) if num_late else state
