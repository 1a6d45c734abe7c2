"""Versions, engines, plans and outcomes as the control plane tells them, mirroring weights.proto."""

from dataclasses import dataclass
from enum import Enum

from services.common.records import PolicyVersion
from services.weights.transfer import SourceRankPlan


class VersionState(Enum):
    """Where a version stands."""

    PREPARED = "prepared"
    TRANSFERRING = "transferring"
    VERIFIED = "verified"
    COMMITTED = "committed"
    ABORTED = "aborted"


@dataclass(frozen=True, kw_only=True)
class VersionRecord:
    """One version with its state."""

    version: PolicyVersion
    """The version."""
    state: VersionState
    """Its state."""
    reason: str
    """Why it was aborted; empty otherwise."""


@dataclass(frozen=True, kw_only=True)
class EngineRecord:
    """One engine's standing."""

    engine_id: str
    """The engine."""
    receiver_address: str
    """host:port of its ReceiverService."""
    version: PolicyVersion | None
    """The version it serves; None before the first."""
    is_quarantined: bool
    """It failed and must register again before it serves."""


@dataclass(frozen=True, kw_only=True)
class PrepareFigures:
    """How an engine received a version into staging."""

    num_bytes: int
    """Bytes received."""
    seconds: float
    """Time to receive and verify."""


@dataclass(frozen=True, kw_only=True)
class CommitFigures:
    """How an engine made a version live."""

    pause_seconds: float
    """Time generation was paused."""
    are_digests_equal: bool
    """Every piece, read back from the live parameters, has the trainer's digest."""


@dataclass(frozen=True, kw_only=True)
class EngineOutcome:
    """What one engine did with a version."""

    engine_id: str
    """The engine."""
    num_bytes: int
    """Bytes received."""
    prepare_seconds: float
    """Time to receive and verify."""
    pause_seconds: float
    """Time generation was paused by the commit."""
    are_digests_equal: bool
    """The digests of the live parameters equal the trainer's."""
    error: str
    """What went wrong; empty: nothing."""


@dataclass(frozen=True, kw_only=True)
class TransferPlan:
    """The trainer's part of a plan."""

    plan_id: str
    """Names the plan when the version is published."""
    ranks: tuple[SourceRankPlan, ...]
    """What each source rank puts into its buffer."""


@dataclass(frozen=True, kw_only=True)
class PublishOutcome:
    """How the publication of a version ended."""

    state: VersionState
    """COMMITTED or ABORTED."""
    reason: str
    """Why it was aborted; empty when committed."""
    engines: tuple[EngineOutcome, ...]
    """One entry per engine."""
    seconds: float
    """From the call to the outcome."""

    @property
    def is_committed(self) -> bool:
        """Whether the engines serve the version."""
        return self.state is VersionState.COMMITTED
