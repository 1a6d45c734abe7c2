"""The sample queue in the memory of one process, for tests and dry runs."""

import itertools
import threading
import time
from dataclasses import dataclass, field

from services.common.records import Group
from services.common.sample_queue import QueuedGroup, check_group_of_run, fenced_error, full_queue_error


@dataclass
class MemoryQueueState:
    """What outlives one queue object, as the server's memory does; share it to open a queue again."""

    entries: dict[str, Group] = field(default_factory=dict)
    """Unacknowledged groups by entry id, oldest first."""
    known_ids: dict[int, dict[str, str]] = field(default_factory=dict)
    """Entry id by group id, by round."""
    finished_round_bound: int = 0
    """Rounds below are finished."""
    epoch: int = 0
    """Grows when a consumer opens."""
    sequence: "itertools.count[int]" = field(default_factory=lambda: itertools.count(1))
    """Next entry id."""
    changed: threading.Condition = field(default_factory=threading.Condition)
    """Guards everything here; notified by a push."""


class MemorySampleQueue:
    """A SampleQueue whose state is a Python object. Safe to use from many threads."""

    def __init__(self, *, run_id: str, max_groups: int, state: MemoryQueueState | None = None) -> None:
        """A queue over the state; without one, over a new and empty state."""
        self._run_id = run_id
        self._max_groups = max_groups
        self._state = state or MemoryQueueState()
        self._epoch: int | None = None
        self._delivered: set[str] = set()

    def push(self, group: Group) -> bool:
        """See SampleQueue.push."""
        check_group_of_run(group, run_id=self._run_id)
        state = self._state
        with state.changed:
            ids = state.known_ids.setdefault(group.round, {})
            if group.round < state.finished_round_bound or group.group_id in ids:
                return False
            if len(state.entries) >= self._max_groups:
                raise full_queue_error(max_groups=self._max_groups)
            entry_id = f"{next(state.sequence)}-0"
            state.entries[entry_id] = group
            ids[group.group_id] = entry_id
            state.changed.notify_all()
        return True

    def claim(self, *, max_groups: int, timeout_seconds: float) -> list[QueuedGroup]:
        """See SampleQueue.claim."""
        deadline = time.monotonic() + timeout_seconds
        with self._state.changed:
            self._open_once()
            while True:
                self._check_not_fenced()
                fresh = [entry_id for entry_id in self._state.entries if entry_id not in self._delivered]
                remaining_seconds = deadline - time.monotonic()
                if fresh or remaining_seconds <= 0:
                    break
                self._state.changed.wait(remaining_seconds)
            self._delivered.update(fresh[:max_groups])
            return [QueuedGroup(entry_id=key, group=self._state.entries[key]) for key in fresh[:max_groups]]

    def acknowledge(self, entry_ids: list[str]) -> None:
        """See SampleQueue.acknowledge."""
        with self._state.changed:
            self._check_not_fenced()
            for entry_id in entry_ids:
                self._state.entries.pop(entry_id, None)
                self._delivered.discard(entry_id)

    def release(self, queued: QueuedGroup) -> bool:
        """See SampleQueue.release."""
        state, group = self._state, queued.group
        with state.changed:
            if group.round < state.finished_round_bound:
                return False
            ids = state.known_ids.setdefault(group.round, {})
            if ids.get(group.group_id, queued.entry_id) != queued.entry_id:
                return False
            ids.pop(group.group_id, None)
            return True

    def forget_rounds_before(self, round_: int) -> None:
        """See SampleQueue.forget_rounds_before."""
        state = self._state
        with state.changed:
            state.finished_round_bound = max(state.finished_round_bound, round_)
            for old in [key for key in state.known_ids if key < state.finished_round_bound]:
                del state.known_ids[old]

    def depth(self) -> int:
        """See SampleQueue.depth."""
        with self._state.changed:
            return len(self._state.entries)

    def _open_once(self) -> None:
        if self._epoch is None:
            self._state.epoch += 1
            self._epoch = self._state.epoch
            self._state.changed.notify_all()

    def _check_not_fenced(self) -> None:
        if self._epoch not in (None, self._state.epoch):
            raise fenced_error()
