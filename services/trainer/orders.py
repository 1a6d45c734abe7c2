"""The work that all trainer ranks do together, as records; conversions.py maps them to bytes."""

from dataclasses import dataclass, field
from pathlib import Path

from services.common.records import Group
from services.weights.transfer import SourceBuffer, SourceRankOffer, SourceRankPlan


@dataclass(frozen=True, kw_only=True)
class TrainRound:
    """The optimizer steps of one round."""

    step: int
    """The training step, from 0."""
    groups: tuple[Group, ...]
    """The groups; empty when there is nothing to train on."""


@dataclass(frozen=True, kw_only=True)
class WarmStartStep:
    """One supervised step."""

    step: int
    """The warm-start step, from 0."""


@dataclass(frozen=True)
class OfferShards:
    """Tell which shards the rank owns."""


@dataclass(frozen=True, kw_only=True)
class FillBuffer:
    """Fill the transfer buffer."""

    plans: tuple[SourceRankPlan, ...]
    """The content of each rank's buffer; a rank without a plan fills nothing."""


@dataclass(frozen=True)
class KeepBuffer:
    """Keep the filled buffer readable: its version is committed."""


@dataclass(frozen=True, kw_only=True)
class SavePolicy:
    """Save the model."""

    folder: Path
    """Folder to write."""
    with_optimizer: bool
    """Whether the optimizer's state is saved too: several times the model's size."""


@dataclass(frozen=True, kw_only=True)
class LoadPolicy:
    """Load a checkpoint."""

    folder: Path
    """Folder to read."""
    with_optimizer: bool
    """Whether the optimizer's state is loaded too."""


@dataclass(frozen=True)
class ResetOptimizer:
    """Forget the optimizer's state."""


@dataclass(frozen=True)
class KeepReference:
    """Keep a copy of the policy as it is: the reference of KL terms."""


@dataclass(frozen=True)
class StopRank:
    """End."""


RankOrder = (
    TrainRound
    | WarmStartStep
    | OfferShards
    | FillBuffer
    | KeepBuffer
    | SavePolicy
    | LoadPolicy
    | ResetOptimizer
    | KeepReference
    | StopRank
)


@dataclass(frozen=True, kw_only=True)
class RankReply:
    """What one rank answers."""

    offer: SourceRankOffer | None = None
    """Its shards, after OfferShards."""
    buffer: SourceBuffer | None = None
    """Its filled buffer, after FillBuffer when the plan wants something of it."""
    figures: dict[str, float] = field(default_factory=dict)
    """Figures of the work by name."""
