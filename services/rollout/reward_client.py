"""The reward service as the rollout service uses it."""

from collections.abc import Sequence

from furlong.reward.v1 import reward_pb2, reward_pb2_grpc

from services.common.channels import call, open_channel
from services.common.records import Score
from services.common.security import Credentials
from services.rollout.scoring import ResponseToScore

_BATCH_ITEMS = 1024
_SCORE_SECONDS = 300.0


class RewardScorer:
    """A Scorer over gRPC. Thread-safe."""

    def __init__(self, address: str, credentials: Credentials, *, grader: str) -> None:
        self._stub = reward_pb2_grpc.RewardServiceStub(open_channel(address, credentials))
        self._grader = grader

    def score_batch(self, items: Sequence[ResponseToScore]) -> list[Score]:
        """One score per item, in order.

        Raises:
            UnavailableError: the service cannot be reached.
            OverloadedError: it has no room now.
        """
        scores: list[Score] = []
        for start in range(0, len(items), _BATCH_ITEMS):
            scores += self._score(items[start : start + _BATCH_ITEMS])
        return scores

    def _score(self, items: Sequence[ResponseToScore]) -> list[Score]:
        request = reward_pb2.ScoreBatchRequest(
            grader=self._grader,
            items=[
                reward_pb2.ScoreItem(
                    sample_id=item.sample_id, prompt=item.prompt, response=item.response, label=item.label
                )
                for item in items
            ],
        )
        reply = call(lambda: self._stub.ScoreBatch(request, timeout=_SCORE_SECONDS), peer="reward service")
        return [
            Score(
                value=score.value,
                extracted=score.extracted,
                rule=score.rule,
                seconds=score.seconds,
                error=score.error,
            )
            for score in reply.scores
        ]
