"""A coordinator over engines that do as the test says."""

from collections.abc import Callable, Sequence

from prometheus_client import CollectorRegistry

from services.common.errors import FurlongError
from services.common.records import PolicyVersion
from services.weights.coordinator import Coordinator
from services.weights.metrics import WeightsMetrics
from services.weights.published import CommitFigures, PrepareFigures, PublishOutcome, VersionState
from services.weights.transfer import EngineRankTransfer, SourceBuffer, SourceRankOffer
from services.weights.version_store import MemoryVersionStore
from tests.unit.weights import tiny_world as world


class ScriptedEngine:
    """An engine that holds a version, and fails or waits where the test says."""

    def __init__(self) -> None:
        self.version: PolicyVersion | None = None
        self.staged: PolicyVersion | None = None
        self.calls: list[str] = []
        self.ranks: Sequence[EngineRankTransfer] = ()
        self.fail: dict[str, FurlongError] = {}
        self.before: dict[str, Callable[[], object]] = {}
        self.are_digests_equal = True
        self.is_closed = False

    def prepare(self, version: PolicyVersion, ranks: Sequence[EngineRankTransfer]) -> PrepareFigures:
        self._enter("prepare")
        self.staged, self.ranks = version, ranks
        return PrepareFigures(num_bytes=sum(p.piece.size_bytes for r in ranks for p in r.pieces), seconds=0.5)

    def commit(self, version: PolicyVersion) -> CommitFigures:
        self._enter("commit")
        assert self.staged == version
        self.version = version
        return CommitFigures(pause_seconds=0.25, are_digests_equal=self.are_digests_equal)

    def abort(self, version: PolicyVersion) -> None:
        self._enter("abort")
        self.staged = None

    def close(self) -> None:
        self.is_closed = True

    def _enter(self, call: str) -> None:
        self.calls.append(call)
        if call in self.before:
            self.before[call]()
        if call in self.fail:
            raise self.fail[call]


class Cluster:
    """A coordinator with scripted engines, their addresses being their names."""

    def __init__(self, *, phase_timeout_seconds: float = 5.0) -> None:
        self.engines: dict[str, ScriptedEngine] = {}
        self.store = MemoryVersionStore()
        self.registry = CollectorRegistry()
        self.coordinator = Coordinator(
            store=self.store,
            connect=lambda address: self.engines[address],
            metrics=WeightsMetrics(self.registry),
            bucket_bytes=256,
            phase_timeout_seconds=phase_timeout_seconds,
        )
        self._num_requests = 0

    def add(self, name: str, tp: int = 1) -> ScriptedEngine:
        """Registers a new engine under the name."""
        self.engines[name] = ScriptedEngine()
        self.coordinator.register_engine(name, name, world.layouts(tp))
        return self.engines[name]

    def publish(self, step: int, *, offers: list[SourceRankOffer] | None = None) -> PublishOutcome:
        plan = self.coordinator.plan_transfer(offers or world.offers())
        return self.publish_plan(step, plan.plan_id, self.buffers(step, offers))

    def publish_plan(
        self, step: int, plan_id: str, buffers: list[SourceBuffer], request_id: str = ""
    ) -> PublishOutcome:
        self._num_requests += 1
        return self.coordinator.publish_version(
            request_id=request_id or f"request-{self._num_requests}",
            version=version(step),
            plan_id=plan_id,
            buffers=buffers,
        )

    def buffers(self, step: int, offers: list[SourceRankOffer] | None = None) -> list[SourceBuffer]:
        plan = self.coordinator.plan_transfer(offers or world.offers())
        return [
            SourceBuffer(
                rank=rank.rank, transport="shm", endpoint=f"v{step}", digests=(f"{step:016x}",) * len(rank.pieces)
            )
            for rank in plan.ranks
        ]

    def steps(self) -> list[int | None]:
        """The step each engine holds, by name."""
        return [engine.version.step if engine.version else None for _, engine in sorted(self.engines.items())]

    def quarantined(self) -> list[str]:
        return [record.engine_id for record in self.coordinator.engines() if record.is_quarantined]

    def states(self) -> list[tuple[int, VersionState]]:
        return [(record.version.step, record.state) for record in self.coordinator.versions("r")]


def version(step: int) -> PolicyVersion:
    return PolicyVersion(run_id="r", step=step)
