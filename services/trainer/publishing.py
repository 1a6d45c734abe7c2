"""Publishes a version: plan, fill every rank's buffer, have it committed, keep the buffer."""

import logging
import time
import uuid
from collections.abc import Callable, Sequence
from typing import Protocol

from services.common.errors import AbortedError, DeadlineError, StateConflictError
from services.common.records import PolicyVersion
from services.trainer.orders import FillBuffer, KeepBuffer, OfferShards
from services.trainer.rank_group import RankGroup
from services.trainer.reports import PublishSummary
from services.weights.published import PublishOutcome, TransferPlan
from services.weights.transfer import SourceBuffer, SourceRankOffer

logger = logging.getLogger(__name__)

_MAX_ABORTED = 3
_CONFLICT_PAUSE_SECONDS = 0.5


class WeightsControl(Protocol):
    """The weights service as the trainer uses it."""

    def plan_transfer(self, offers: Sequence[SourceRankOffer]) -> TransferPlan:
        """The plan for the engines registered now.

        Raises:
            StateConflictError: no engine takes part.
        """
        ...

    def publish_version(
        self, *, request_id: str, version: PolicyVersion, plan_id: str, buffers: Sequence[SourceBuffer]
    ) -> PublishOutcome:
        """The outcome of the two-phase commit.

        Raises:
            StateConflictError: the plan is out of date.
        """
        ...


class Publisher:
    """Publishes versions for all ranks; rank 0 owns it."""

    def __init__(
        self,
        ranks: RankGroup,
        weights: WeightsControl,
        *,
        engines_timeout_seconds: float,
        should_stop: Callable[[], bool],
    ) -> None:
        """Waits engines_timeout_seconds for engines to take part, and as long for their number to settle."""
        self._ranks = ranks
        self._weights = weights
        self._engines_timeout_seconds = engines_timeout_seconds
        self._should_stop = should_stop
        self._plan: TransferPlan | None = None

    def publish(self, version: PolicyVersion) -> PublishSummary:
        """Brings the ranks' present weights to all engines as the version.

        Raises:
            AbortedError: no attempt was committed, or the process is to stop.
            DeadlineError: no engine took part in time.
        """
        reasons: list[str] = []
        while len(reasons) < _MAX_ABORTED:
            started, outcome = self._attempt(version)
            if outcome.is_committed:
                self._ranks.carry_out(KeepBuffer())
                return _summary(outcome, seconds=time.monotonic() - started, num_aborted=len(reasons))
            reasons.append(outcome.reason)
            self._plan = None
            logger.warning("version aborted", extra={"policy_version": str(version), "reason": outcome.reason})
        raise AbortedError(f"version {version} was not committed in {_MAX_ABORTED} attempts: {reasons[-1]}")

    def _attempt(self, version: PolicyVersion) -> tuple[float, PublishOutcome]:
        """The time of the attempt that came to an outcome, and the outcome; plans again while engines come and go."""
        deadline = time.monotonic() + self._engines_timeout_seconds
        while True:
            started = time.monotonic()
            try:
                return started, self._publish_once(version)
            except StateConflictError as error:
                self._plan = None
                if self._should_stop():
                    raise AbortedError(f"stopped before version {version} was published") from error
                if time.monotonic() > deadline:
                    raise DeadlineError(
                        f"version {version} waits since {self._engines_timeout_seconds:.0f} s: {error}; see the "
                        "logs of the rollout services or raise rollout.engine.start_timeout_seconds"
                    ) from error
                time.sleep(_CONFLICT_PAUSE_SECONDS)

    def _publish_once(self, version: PolicyVersion) -> PublishOutcome:
        if self._plan is None:
            replies = self._ranks.carry_out(OfferShards())
            self._plan = self._weights.plan_transfer([reply.offer for reply in replies if reply.offer])
        replies = self._ranks.carry_out(FillBuffer(plans=self._plan.ranks))
        return self._weights.publish_version(
            request_id=uuid.uuid4().hex,
            version=version,
            plan_id=self._plan.plan_id,
            buffers=[reply.buffer for reply in replies if reply.buffer],
        )


def _summary(outcome: PublishOutcome, *, seconds: float, num_aborted: int) -> PublishSummary:
    return PublishSummary(
        is_committed=True,
        are_digests_equal=all(engine.are_digests_equal for engine in outcome.engines),
        sync_seconds=seconds,
        pause_seconds=max((engine.pause_seconds for engine in outcome.engines), default=0.0),
        num_aborted=num_aborted,
    )
