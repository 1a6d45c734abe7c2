"""A weights service that answers from a script, for tests of publisher and loop."""

from collections.abc import Callable, Sequence

from services.common.errors import StateConflictError
from services.common.records import PolicyVersion
from services.weights.published import EngineOutcome, PublishOutcome, TransferPlan, VersionState
from services.weights.transfer import SourceBuffer, SourceRankOffer, SourceRankPlan


def outcome(state: VersionState, *, reason: str = "", are_digests_equal: bool = True) -> PublishOutcome:
    engine = EngineOutcome(
        engine_id="rollout-0",
        num_bytes=1,
        prepare_seconds=0.1,
        pause_seconds=0.02,
        are_digests_equal=are_digests_equal,
        error="",
    )
    return PublishOutcome(state=state, reason=reason, engines=(engine,), seconds=0.1)


class ScriptedWeights:
    """Commits everything, except what the script says first."""

    def __init__(self, script: Sequence[PublishOutcome | StateConflictError] = ()) -> None:
        self.script = list(script)
        self.num_plans = 0
        self.published: list[PolicyVersion] = []
        self.on_commit: Callable[[PolicyVersion], None] = lambda version: None

    def plan_transfer(self, offers: Sequence[SourceRankOffer]) -> TransferPlan:
        self.num_plans += 1
        ranks = tuple(SourceRankPlan(rank=offer.rank, pieces=()) for offer in offers)
        return TransferPlan(plan_id=f"plan-{self.num_plans}", ranks=ranks)

    def publish_version(
        self, *, request_id: str, version: PolicyVersion, plan_id: str, buffers: Sequence[SourceBuffer]
    ) -> PublishOutcome:
        assert request_id
        assert plan_id == f"plan-{self.num_plans}"
        step = self.script.pop(0) if self.script else outcome(VersionState.COMMITTED)
        if isinstance(step, StateConflictError):
            raise step
        if step.is_committed:
            self.published.append(version)
            self.on_commit(version)
        return step
