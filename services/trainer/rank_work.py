"""What one rank does for each order."""

from services.common.errors import StateConflictError
from services.trainer.orders import (
    FillBuffer,
    KeepBuffer,
    KeepReference,
    LoadPolicy,
    OfferShards,
    RankOrder,
    RankReply,
    ResetOptimizer,
    SavePolicy,
    StopRank,
    TrainRound,
    WarmStartStep,
)
from services.trainer.policy import Policy
from services.trainer.round_training import RoundTraining
from services.trainer.warm_start import WarmStart
from services.weights.sender import Sender
from services.weights.transfer import SourceBuffer, SourceRankOffer, SourceRankPlan


class RankWork:
    """Carries out orders with this rank's policy and transfer buffer."""

    def __init__(
        self,
        *,
        rank: int,
        policy: Policy,
        sender: Sender,
        round_training: RoundTraining,
        warm_start: WarmStart | None,
    ) -> None:
        self._rank = rank
        self._policy = policy
        self._sender = sender
        self._round_training = round_training
        self._warm_start = warm_start

    def carry_out(self, order: RankOrder) -> RankReply:
        """Does this rank's part of the order.

        Raises:
            StateConflictError: a warm-start step is ordered where there are no demonstrations.
        """
        match order:
            case TrainRound(step=step, groups=groups):
                return RankReply(figures=self._round_training.train(step, groups))
            case WarmStartStep(step=step):
                if self._warm_start is None:
                    raise StateConflictError("a warm-start step is ordered, but the recipe has no demonstrations")
                return RankReply(figures=self._warm_start.step(step))
            case OfferShards():
                shards = tuple(item.shard for item in self._policy.owned_shards())
                return RankReply(offer=SourceRankOffer(rank=self._rank, shards=shards))
            case FillBuffer(plans=plans):
                return RankReply(buffer=self._fill(plans))
            case KeepBuffer():
                self._sender.keep()
            case SavePolicy(folder=folder, with_optimizer=with_optimizer):
                self._policy.save(folder, with_optimizer=with_optimizer)
            case LoadPolicy(folder=folder, with_optimizer=with_optimizer):
                self._policy.load(folder, with_optimizer=with_optimizer)
            case ResetOptimizer():
                self._policy.reset_optimizer()
            case KeepReference():
                self._policy.keep_reference()
            case StopRank():
                self._sender.close()
        return RankReply()

    def _fill(self, plans: tuple[SourceRankPlan, ...]) -> SourceBuffer | None:
        mine = next((plan for plan in plans if plan.rank == self._rank and plan.pieces), None)
        return self._sender.fill(mine, self._policy.owned_shards()) if mine else None
