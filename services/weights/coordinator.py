"""The control plane: registers engines, plans transfers, publishes versions. It never touches a weight's bytes."""

import contextlib
import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from services.common.errors import FurlongError, InvalidInputError, OverloadedError, StateConflictError, TransferError
from services.common.records import PolicyVersion
from services.weights.engine_registry import EngineGateway, EngineRegistry, RegisteredEngine
from services.weights.metrics import WeightsMetrics
from services.weights.piece_inventory import PieceInventory
from services.weights.plan import CompletePlan, check_layouts, digest_of, make_plan, make_plan_id
from services.weights.published import EngineRecord, PublishOutcome, VersionRecord
from services.weights.transfer import EngineRankLayout, EngineRankTransfer, SourceBuffer, SourceRankOffer
from services.weights.two_phase_commit import TwoPhaseCommit
from services.weights.version_store import VersionStore, abort_unfinished, announce

logger = logging.getLogger(__name__)

# Outcomes kept for repeated calls; a caller repeats within seconds, not after this many versions.
_MAX_FINISHED = 256


@dataclass(frozen=True, kw_only=True)
class _Planned:
    """The plan in force and what it was made from."""

    plan: CompletePlan
    """The plan."""
    offers: tuple[SourceRankOffer, ...]
    """The trainer's offers."""
    offers_digest: str
    """Digest of the offers."""


@dataclass(frozen=True, kw_only=True)
class _Committed:
    """The version that engines which come late fetch."""

    version: PolicyVersion
    """The version."""
    offers: tuple[SourceRankOffer, ...]
    """The offers its plan was made from."""
    inventory: PieceInventory
    """Its pieces in the trainer's buffers."""


class Coordinator:
    """Any thread may call any method. Registrations, plans and publications happen one at a time.

    Engines and the plan live in memory: after a restart of the service the engines register again and the trainer plans
    again. Versions are stored.
    """

    def __init__(
        self,
        *,
        store: VersionStore,
        connect: Callable[[str], EngineGateway],
        metrics: WeightsMetrics,
        bucket_bytes: int,
        phase_timeout_seconds: float,
    ) -> None:
        """Aborts what a former life of the service left in progress.

        Args:
            connect: a gateway to the receiver at host:port.
        """
        abort_unfinished(store)
        self._store = store
        self._connect = connect
        self._metrics = metrics
        self._bucket_bytes = bucket_bytes
        self._lock_timeout_seconds = 3 * phase_timeout_seconds
        self._registry = EngineRegistry()
        self._commit = TwoPhaseCommit(
            store=store, registry=self._registry, metrics=metrics, phase_timeout_seconds=phase_timeout_seconds
        )
        self._lock = threading.Lock()
        self._planned: _Planned | None = None
        self._committed: _Committed | None = None
        self._finished: OrderedDict[str, PublishOutcome] = OrderedDict()

    def register_engine(
        self, engine_id: str, receiver_address: str, layouts: Sequence[EngineRankLayout]
    ) -> PolicyVersion | None:
        """Adds the engine in place of its former self, and brings it the committed version if that can be fetched.

        Returns the version the engine now serves; None when it waits for the next one.

        Raises:
            InvalidInputError: the layout is unsound or needs what the trainer does not have.
            FurlongError: the engine did not commit what it had fetched; it stays quarantined.
        """
        if not engine_id or not receiver_address:
            raise InvalidInputError(f"engine id {engine_id!r} or address {receiver_address!r} is empty; give both")
        check_layouts(layouts)
        with self._exclusive():
            transfers = self._catch_up_transfers(engine_id, layouts)
            engine = RegisteredEngine(
                engine_id=engine_id,
                receiver_address=receiver_address,
                layouts=tuple(layouts),
                layout_digest=digest_of(layouts),
                gateway=self._connect(receiver_address),
                version=None,
                is_quarantined=False,
            )
            self._registry.put(engine)
            version = self._catch_up(engine, transfers) if transfers else None
            held = str(version or "none")
            logger.info("engine registered", extra={"engine_id": engine_id, "policy_version": held})
            return version

    def plan_transfer(self, offers: Sequence[SourceRankOffer]) -> CompletePlan:
        """The plan for the engines that take part now.

        Raises:
            StateConflictError: no engine takes part.
            InvalidInputError: the offers lack what an engine needs.
        """
        with self._exclusive():
            engines = self._live_engines()
            offers_digest = digest_of(offers)
            if self._planned is None or self._planned.plan.plan_id != self._plan_id(offers_digest, engines):
                started = time.monotonic()
                layouts = {engine.engine_id: engine.layouts for engine in engines}
                plan = make_plan(offers, layouts, bucket_bytes=self._bucket_bytes)
                self._planned = _Planned(plan=plan, offers=tuple(offers), offers_digest=offers_digest)
                self._metrics.plan_seconds.observe(time.monotonic() - started)
            return self._planned.plan

    def publish_version(
        self, *, request_id: str, version: PolicyVersion, plan_id: str, buffers: Sequence[SourceBuffer]
    ) -> PublishOutcome:
        """The outcome of moving the version to all engines; a finished request id returns its outcome again.

        Raises:
            InvalidInputError: no request id, or buffers that do not match the plan.
            StateConflictError: the plan is out of date, or the step is not above the last committed one.
        """
        if not request_id:
            raise InvalidInputError("request_id is empty; give one that is unique to this publication")
        with self._exclusive():
            if request_id not in self._finished:
                self._finished[request_id] = self._publish(version, plan_id, buffers)
                if len(self._finished) > _MAX_FINISHED:
                    self._finished.popitem(last=False)
            return self._finished[request_id]

    def versions(self, run_id: str = "") -> tuple[VersionRecord, ...]:
        """The versions of a run, or of all runs, oldest first."""
        return self._store.records(run_id)

    def engines(self) -> tuple[EngineRecord, ...]:
        """Every engine's standing, in order of id."""
        return self._registry.records()

    def close(self) -> None:
        """Ends the connections to the engines."""
        self._registry.close()

    def _publish(self, version: PolicyVersion, plan_id: str, buffers: Sequence[SourceBuffer]) -> PublishOutcome:
        engines = self._live_engines()
        planned = self._require_plan(plan_id, engines)
        inventory = PieceInventory(planned.plan, buffers)
        transfers = {
            engine.engine_id: inventory.transfers(planned.plan.engines[engine.engine_id]) for engine in engines
        }
        record = announce(version, self._store.records(version.run_id))
        self._store.put(record)
        outcome = self._commit.run(record, engines, transfers)
        if outcome.is_committed:
            self._committed = _Committed(version=version, offers=planned.offers, inventory=inventory)
        return outcome

    def _live_engines(self) -> tuple[RegisteredEngine, ...]:
        engines = self._registry.live()
        if not engines:
            quarantined = [record.engine_id for record in self._registry.records()]
            raise StateConflictError(
                f"0 engines take part (quarantined: {', '.join(quarantined) or 'none'}), wanted 1 or more; start a "
                "rollout service or let the quarantined ones register again"
            )
        return engines

    def _require_plan(self, plan_id: str, engines: Sequence[RegisteredEngine]) -> _Planned:
        current = self._plan_id(self._planned.offers_digest, engines) if self._planned else "none"
        if self._planned is None or not plan_id == self._planned.plan.plan_id == current:
            raise StateConflictError(
                f"plan {plan_id!r} is out of date, the engines of now need plan {current!r}; call PlanTransfer again"
            )
        return self._planned

    def _plan_id(self, offers_digest: str, engines: Sequence[RegisteredEngine]) -> str:
        return make_plan_id(
            offers_digest=offers_digest,
            layout_digests={engine.engine_id: engine.layout_digest for engine in engines},
            bucket_bytes=self._bucket_bytes,
        )

    def _catch_up_transfers(
        self, engine_id: str, layouts: Sequence[EngineRankLayout]
    ) -> tuple[EngineRankTransfer, ...]:
        """What the engine must fetch to hold the committed version; empty when there is none it can fetch."""
        if self._committed is None:
            return ()
        plan = make_plan(self._committed.offers, {engine_id: layouts}, bucket_bytes=self._bucket_bytes)
        try:
            return self._committed.inventory.transfers(plan.engines[engine_id])
        except StateConflictError as error:
            self._note_waiting(engine_id, error)
            return ()

    def _catch_up(self, engine: RegisteredEngine, transfers: Sequence[EngineRankTransfer]) -> PolicyVersion | None:
        assert self._committed is not None
        version = self._committed.version
        try:
            engine.gateway.prepare(version, transfers)
        except FurlongError as error:
            self._note_waiting(engine.engine_id, error)
            return None
        self._registry.quarantine(engine.engine_id)
        try:
            figures = engine.gateway.commit(version)
            if not figures.are_digests_equal:
                raise TransferError(f"live parameters of {engine.engine_id} differ from the trainer's; restart it")
        except FurlongError:
            self._metrics.catch_ups.labels(outcome="failed").inc()
            raise
        self._registry.serves(engine.engine_id, version)
        self._metrics.catch_ups.labels(outcome="fetched").inc()
        return version

    def _note_waiting(self, engine_id: str, error: FurlongError) -> None:
        self._metrics.catch_ups.labels(outcome="waiting").inc()
        logger.warning("engine waits for the next version", extra={"engine_id": engine_id, "detail": str(error)})

    @contextlib.contextmanager
    def _exclusive(self) -> Iterator[None]:
        """One registration, plan or publication at a time."""
        if not self._lock.acquire(timeout=self._lock_timeout_seconds):
            raise OverloadedError(
                f"another registration or publication still runs after {self._lock_timeout_seconds:.0f} s; try again"
            )
        try:
            yield
        finally:
            self._lock.release()
            records = self._registry.records()
            num_quarantined = sum(record.is_quarantined for record in records)
            self._metrics.observe_engines(num_live=len(records) - num_quarantined, num_quarantined=num_quarantined)
