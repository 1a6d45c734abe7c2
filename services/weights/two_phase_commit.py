"""Moves one version to all engines or to none.

Before the commit phase any failure aborts: every engine keeps the version it has. The decision falls when all engines
have verified. An engine that fails in the commit phase, while another one commits, is quarantined and the version
counts as committed: taking it back would need the old weights, which the committed engines no longer hold.
"""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TypeVar

from services.common.errors import DeadlineError, FurlongError, TransferError, UnavailableError
from services.weights.engine_registry import EngineRegistry, RegisteredEngine
from services.weights.metrics import WeightsMetrics
from services.weights.parallel_calls import call_all
from services.weights.published import (
    CommitFigures,
    EngineOutcome,
    PrepareFigures,
    PublishOutcome,
    VersionRecord,
    VersionState,
)
from services.weights.transfer import EngineRankTransfer
from services.weights.version_store import VersionStore, advance

logger = logging.getLogger(__name__)

_Figures = TypeVar("_Figures")

# The engine's own answer at its deadline is more telling than ours, so it gets a moment longer.
_GRACE_SECONDS = 2.0
_ABORT_SECONDS = 10.0


class TwoPhaseCommit:
    """Runs the phases of versions, one at a time."""

    def __init__(
        self,
        *,
        store: VersionStore,
        registry: EngineRegistry,
        metrics: WeightsMetrics,
        phase_timeout_seconds: float,
    ) -> None:
        self._store = store
        self._registry = registry
        self._metrics = metrics
        self._phase_timeout_seconds = phase_timeout_seconds

    def run(
        self,
        record: VersionRecord,
        engines: Sequence[RegisteredEngine],
        transfers: Mapping[str, Sequence[EngineRankTransfer]],
    ) -> PublishOutcome:
        """The outcome of a version in state PREPARED, which is COMMITTED or ABORTED and stored.

        Raises:
            UnavailableError: the store cannot be reached; before the commit phase every engine has aborted then.
        """
        started = time.monotonic()
        run = _Run(record, engines)
        try:
            reason = self._prepare(run, transfers)
        except FurlongError:
            self._abort(run)
            raise
        if not reason:
            reason = self._commit(run)
        state = VersionState.ABORTED if reason else VersionState.COMMITTED
        self._advance(run, state, reason)
        outcome = run.outcome(seconds=time.monotonic() - started)
        self._metrics.observe_outcome(outcome)
        logger.info(
            "version settled",
            extra={"policy_version": str(record.version), "state": outcome.state.value, "reason": outcome.reason},
        )
        return outcome

    def _prepare(self, run: "_Run", transfers: Mapping[str, Sequence[EngineRankTransfer]]) -> str:
        """Has every engine receive and verify; returns why the version cannot be committed, empty if it can."""
        self._advance(run, VersionState.TRANSFERRING)
        version = run.record.version
        calls = {
            engine.engine_id: partial(engine.gateway.prepare, version, transfers[engine.engine_id])
            for engine in run.engines
        }
        run.prepared, errors = self._phase("prepare", calls)
        if not errors:
            self._advance(run, VersionState.VERIFIED)
            return ""
        run.errors.update(errors)
        for engine_id, error in errors.items():
            # An engine that answers holds its old weights. When all of them refuse, the fault is the sources'.
            if run.prepared or isinstance(error, UnavailableError | DeadlineError):
                self._quarantine(engine_id, error, phase="prepare")
        self._abort(run)
        return run.describe_errors()

    def _commit(self, run: "_Run") -> str:
        """Has every engine make the version live; returns why none did, empty if one did."""
        version = run.record.version
        calls = {engine.engine_id: partial(engine.gateway.commit, version) for engine in run.engines}
        run.committed, run.errors = self._phase("commit", calls)
        for engine_id, figures in run.committed.items():
            if figures.are_digests_equal:
                self._registry.serves(engine_id, version)
            else:
                run.errors[engine_id] = TransferError(
                    f"live parameters of {engine_id} differ from the trainer's after the commit; register it again"
                )
        for engine_id, error in run.errors.items():
            self._quarantine(engine_id, error, phase="commit")
        return run.describe_errors() if len(run.errors) == len(run.engines) else ""

    def _abort(self, run: "_Run") -> None:
        version = run.record.version
        calls = {engine.engine_id: partial(engine.gateway.abort, version) for engine in run.engines}
        timeout = min(_ABORT_SECONDS, self._phase_timeout_seconds)
        _, errors = call_all(calls, timeout_seconds=timeout)
        for engine_id, error in errors.items():
            logger.warning("engine did not abort", extra={"engine_id": engine_id, "detail": str(error)})

    def _phase(
        self, name: str, calls: Mapping[str, Callable[[], _Figures]]
    ) -> tuple[dict[str, _Figures], dict[str, FurlongError]]:
        started = time.monotonic()
        result = call_all(calls, timeout_seconds=self._phase_timeout_seconds + _GRACE_SECONDS)
        self._metrics.observe_phase(name, time.monotonic() - started)
        return result

    def _quarantine(self, engine_id: str, error: FurlongError, *, phase: str) -> None:
        self._registry.quarantine(engine_id)
        self._metrics.quarantines.labels(phase=phase).inc()
        logger.warning("engine quarantined", extra={"engine_id": engine_id, "phase": phase, "detail": str(error)})

    def _advance(self, run: "_Run", state: VersionState, reason: str = "") -> None:
        run.record = advance(run.record, state, reason=reason)
        self._store.put(run.record)


class _Run:
    """One version on its way, with what each engine did so far."""

    def __init__(self, record: VersionRecord, engines: Sequence[RegisteredEngine]) -> None:
        self.record = record
        self.engines = engines
        self.prepared: dict[str, PrepareFigures] = {}
        self.committed: dict[str, CommitFigures] = {}
        self.errors: dict[str, FurlongError] = {}

    def describe_errors(self) -> str:
        """What went wrong, engine by engine; empty if nothing did."""
        return "; ".join(f"{engine_id}: {self.errors[engine_id]}" for engine_id in sorted(self.errors))

    def outcome(self, *, seconds: float) -> PublishOutcome:
        """The outcome, once the record has its last state."""
        return PublishOutcome(
            state=self.record.state,
            reason=self.record.reason,
            engines=tuple(self._engine_outcome(engine.engine_id) for engine in self.engines),
            seconds=seconds,
        )

    def _engine_outcome(self, engine_id: str) -> EngineOutcome:
        prepared = self.prepared.get(engine_id, PrepareFigures(num_bytes=0, seconds=0.0))
        committed = self.committed.get(engine_id, CommitFigures(pause_seconds=0.0, are_digests_equal=False))
        return EngineOutcome(
            engine_id=engine_id,
            num_bytes=prepared.num_bytes,
            prepare_seconds=prepared.seconds,
            pause_seconds=committed.pause_seconds,
            are_digests_equal=committed.are_digests_equal,
            error=str(self.errors.get(engine_id, "")),
        )
