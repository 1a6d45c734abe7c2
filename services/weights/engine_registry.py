"""Which engines there are, which version each serves, and which are quarantined."""

import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from services.common.records import PolicyVersion
from services.weights.published import CommitFigures, EngineRecord, PrepareFigures
from services.weights.transfer import EngineRankLayout, EngineRankTransfer


class EngineGateway(Protocol):
    """The receiver of one engine. Every call ends within the phase timeout.

    Each call raises UnavailableError or DeadlineError when the engine itself does not answer, and any other
    FurlongError when it answers with a refusal.
    """

    def prepare(self, version: PolicyVersion, ranks: Sequence[EngineRankTransfer]) -> PrepareFigures:
        """Has the version fetched into staging and verified."""
        ...

    def commit(self, version: PolicyVersion) -> CommitFigures:
        """Has the staged version made live."""
        ...

    def abort(self, version: PolicyVersion) -> None:
        """Has the staged version forgotten."""
        ...

    def close(self) -> None:
        """Ends the connection."""
        ...


@dataclass(frozen=True, kw_only=True)
class RegisteredEngine:
    """One engine."""

    engine_id: str
    """Stable name."""
    receiver_address: str
    """host:port of its ReceiverService."""
    layouts: tuple[EngineRankLayout, ...]
    """The layout of each rank."""
    layout_digest: str
    """Digest of the layouts."""
    gateway: EngineGateway
    """Its receiver."""
    version: PolicyVersion | None
    """The version it serves; None before the first."""
    is_quarantined: bool
    """It failed and takes part again after it has registered again."""


class EngineRegistry:
    """All engines by id. Any thread may call it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._engines: dict[str, RegisteredEngine] = {}

    def put(self, engine: RegisteredEngine) -> None:
        """Adds the engine in place of its former self, whose connection ends."""
        with self._lock:
            former = self._engines.get(engine.engine_id)
            self._engines[engine.engine_id] = engine
        if former is not None and former.gateway is not engine.gateway:
            former.gateway.close()

    def serves(self, engine_id: str, version: PolicyVersion) -> None:
        """Records that the engine serves the version."""
        with self._lock:
            self._engines[engine_id] = replace(self._engines[engine_id], version=version, is_quarantined=False)

    def quarantine(self, engine_id: str) -> None:
        """Takes the engine out until it registers again."""
        with self._lock:
            self._engines[engine_id] = replace(self._engines[engine_id], is_quarantined=True)

    def live(self) -> tuple[RegisteredEngine, ...]:
        """The engines that take part, in order of id."""
        with self._lock:
            return tuple(
                self._engines[name] for name in sorted(self._engines) if not self._engines[name].is_quarantined
            )

    def records(self) -> tuple[EngineRecord, ...]:
        """Every engine's standing, in order of id."""
        with self._lock:
            engines = [self._engines[name] for name in sorted(self._engines)]
        return tuple(
            EngineRecord(
                engine_id=engine.engine_id,
                receiver_address=engine.receiver_address,
                version=engine.version,
                is_quarantined=engine.is_quarantined,
            )
            for engine in engines
        )

    def close(self) -> None:
        """Ends every connection."""
        with self._lock:
            engines, self._engines = list(self._engines.values()), {}
        for engine in engines:
            engine.gateway.close()
