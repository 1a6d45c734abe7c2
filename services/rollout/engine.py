"""The engine as the rollout service sees it: ids in, ids out, and weights committed from staging.

Legend: P prompt tokens, T response tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from services.common.records import FinishReason, PolicyVersion, VersionSpan
from services.weights.transfer import EngineRankLayout, StagedRank


@dataclass(frozen=True, kw_only=True)
class SamplingParameters:
    """How tokens are drawn."""

    temperature: float
    """Softmax temperature; 0 is greedy."""
    top_p: float
    """Nucleus mass, above 0 and at most 1."""
    max_new_tokens: int
    """Most tokens of one response, at least 1."""


@dataclass(frozen=True, kw_only=True)
class EngineResponse:
    """One response as the engine made it."""

    token_ids: tuple[int, ...]
    """[T] end token included."""
    logprobs: tuple[float, ...]
    """[T] natural log-probabilities at the sampling temperature."""
    version_spans: tuple[VersionSpan, ...]
    """The versions that made the tokens, in order; counts add up to T."""
    finish_reason: FinishReason
    """Why it stopped."""
    num_verify_steps: int
    """Target forward passes that verified draft tokens; 0 without speculation."""


@dataclass(frozen=True, kw_only=True)
class CommitResult:
    """How a commit went inside the engine."""

    pause_seconds: float
    """Time generation was paused."""
    are_digests_equal: bool
    """Every piece, read back from the live parameters of every rank, has the trainer's digest."""


class Engine(Protocol):
    """One inference engine. All coroutines run on the event loop that made it."""

    @property
    def version(self) -> PolicyVersion | None:
        """The committed version it serves; None before the first commit."""
        ...

    @property
    def layouts(self) -> Sequence[EngineRankLayout]:
        """The parameters of each rank."""
        ...

    async def generate(
        self, prompt_token_ids: Sequence[int], *, sampling: SamplingParameters, num_samples: int
    ) -> list[EngineResponse]:
        """num_samples responses to one prompt.

        Raises:
            StateConflictError: no version is committed yet.
            UnavailableError: the engine is gone.
        """
        ...

    async def commit(self, version: PolicyVersion, staged: Sequence[StagedRank]) -> CommitResult:
        """Pauses, copies staging into target and draft of every rank, sets the version, resumes.

        Running requests go on with the new weights; their further tokens carry the new version, and no later request
        reuses key-value cache of an older version.

        Raises:
            TransferError: a rank refused; nothing was written in any model of that rank.
            UnavailableError: the engine is gone.
        """
        ...

    def shutdown(self) -> None:
        """Ends the engine and every process of it."""
        ...
