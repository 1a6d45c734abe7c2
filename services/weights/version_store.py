"""The state machine of a version, and where versions are kept.

    PREPARED ─► TRANSFERRING ─► VERIFIED ─► COMMITTED
        └────────────┴─────────────┴──────► ABORTED ─► PREPARED (the same step, published again)

A run's committed steps only grow, also over restarts of the service. Step 0 is the exception: it starts the run over,
and committing it forgets the steps above it.
"""

from collections.abc import Sequence
from typing import Protocol

import redis
from redis.backoff import ExponentialBackoff
from redis.retry import Retry

from services.common.errors import InvalidInputError, StateConflictError, UnavailableError
from services.common.records import PolicyVersion
from services.weights.published import VersionRecord, VersionState

_NEXT = {
    VersionState.PREPARED: {VersionState.TRANSFERRING, VersionState.ABORTED},
    VersionState.TRANSFERRING: {VersionState.VERIFIED, VersionState.ABORTED},
    VersionState.VERIFIED: {VersionState.COMMITTED, VersionState.ABORTED},
    VersionState.COMMITTED: set[VersionState](),
    VersionState.ABORTED: set[VersionState](),
}


def advance(record: VersionRecord, state: VersionState, *, reason: str = "") -> VersionRecord:
    """The record in its next state.

    Raises:
        StateConflictError: the state machine has no such step.
    """
    if state not in _NEXT[record.state]:
        raise StateConflictError(
            f"version {record.version} is {record.state.value} and cannot become {state.value}; publish a new version"
        )
    return VersionRecord(version=record.version, state=state, reason=reason)


def announce(version: PolicyVersion, known: Sequence[VersionRecord]) -> VersionRecord:
    """The record of a version that the trainer announces.

    Raises:
        InvalidInputError: no run id, or a negative step.
        StateConflictError: the step is neither above the run's last committed one nor 0.
    """
    if not version.run_id or version.step < 0:
        raise InvalidInputError(f"version {version} is unusable; give a run id and a step of 0 or more")
    last = last_committed_step(known, version.run_id)
    if last is not None and 0 < version.step <= last:
        raise StateConflictError(
            f"version {version} is not above the run's last committed step {last}; publish step {last + 1} or later, "
            "or 0 to start the run over"
        )
    return VersionRecord(version=version, state=VersionState.PREPARED, reason="")


def last_committed_step(known: Sequence[VersionRecord], run_id: str) -> int | None:
    """The highest committed step of a run; None without one."""
    return max(
        (r.version.step for r in known if r.version.run_id == run_id and r.state is VersionState.COMMITTED),
        default=None,
    )


class VersionStore(Protocol):
    """The records of all versions. One coordinator writes."""

    def put(self, record: VersionRecord) -> None:
        """Keeps the record in place of an earlier one of the same version.

        A COMMITTED record of step 0 removes the run's other records.

        Raises:
            UnavailableError: the store cannot be reached.
        """
        ...

    def records(self, run_id: str = "") -> tuple[VersionRecord, ...]:
        """The records of a run, or of all runs, in order of run id and step.

        Raises:
            UnavailableError: the store cannot be reached.
        """
        ...


def abort_unfinished(store: VersionStore) -> None:
    """Marks as aborted what a former life of the service left in progress."""
    for record in store.records():
        if VersionState.ABORTED in _NEXT[record.state]:
            store.put(advance(record, VersionState.ABORTED, reason="the weights service ended before the outcome"))


class MemoryVersionStore:
    """Versions in memory: they end with the process."""

    def __init__(self) -> None:
        self._records: dict[PolicyVersion, VersionRecord] = {}

    def put(self, record: VersionRecord) -> None:
        """Keeps the record."""
        if _starts_over(record):
            run_id = record.version.run_id
            self._records = {v: other for v, other in self._records.items() if v.run_id != run_id}
        self._records[record.version] = record

    def records(self, run_id: str = "") -> tuple[VersionRecord, ...]:
        """The records, sorted."""
        return tuple(self._records[v] for v in sorted(self._records) if run_id in ("", v.run_id))


class RedisVersionStore:
    """Versions in Redis: one hash per run, from step to "state reason"; a set names the runs."""

    def __init__(self, client: redis.Redis, *, prefix: str = "furlong:weights") -> None:
        self._client = client
        self._prefix = prefix
        # Writing and reading again is harmless, so a short loss of the connection does not abort a version.
        self._retry = Retry(ExponentialBackoff(cap=0.5, base=0.05), 3)

    def put(self, record: VersionRecord) -> None:
        """Keeps the record, in one transaction."""
        try:
            self._retry.call_with_retry(lambda: self._put(record), _again)
        except redis.RedisError as error:
            raise UnavailableError(f"version {record.version} is not stored: {error}; check redis.url") from error

    def records(self, run_id: str = "") -> tuple[VersionRecord, ...]:
        """The records, sorted."""
        try:
            return self._retry.call_with_retry(lambda: self._records(run_id), _again)
        except redis.RedisError as error:
            raise UnavailableError(f"versions cannot be read from Redis: {error}; check redis.url") from error

    def _put(self, record: VersionRecord) -> None:
        run_id, step = record.version.run_id, record.version.step
        with self._client.pipeline(transaction=True) as pipeline:
            if _starts_over(record):
                pipeline.delete(self._run_key(run_id))
            pipeline.sadd(f"{self._prefix}:runs", run_id)
            pipeline.hset(self._run_key(run_id), str(step), f"{record.state.value} {record.reason}")
            pipeline.execute()

    def _records(self, run_id: str) -> tuple[VersionRecord, ...]:
        runs = [run_id] if run_id else [_text(name) for name in self._client.smembers(f"{self._prefix}:runs")]
        records = [
            _record(run, _text(step), _text(value))
            for run in runs
            for step, value in self._client.hgetall(self._run_key(run)).items()
        ]
        return tuple(sorted(records, key=lambda record: record.version))

    def _run_key(self, run_id: str) -> str:
        return f"{self._prefix}:versions:{run_id}"


def _starts_over(record: VersionRecord) -> bool:
    return record.state is VersionState.COMMITTED and record.version.step == 0


def _record(run_id: str, step: str, value: str) -> VersionRecord:
    state, _, reason = value.partition(" ")
    return VersionRecord(version=PolicyVersion(run_id=run_id, step=int(step)), state=VersionState(state), reason=reason)


def _again(error: Exception) -> None:
    """Nothing is left over of a call that failed."""


def _text(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else value
