"""The reward service as the rollout service uses it."""

import logging
import time
from collections.abc import Sequence

from furlong.reward.v1 import reward_pb2, reward_pb2_grpc

from services.common.channels import call, open_balanced_channel
from services.common.errors import OverloadedError
from services.common.records import Score
from services.common.security import Credentials
from services.rollout.scoring import ResponseToScore

logger = logging.getLogger(__name__)

_BATCH_ITEMS = 1024
_SCORE_SECONDS = 300.0


class RewardScorer:
    """A Scorer over gRPC, on all replicas of the reward service in turns. Thread-safe."""

    def __init__(self, addresses: Sequence[str], credentials: Credentials, *, grader: str) -> None:
        service = reward_pb2.DESCRIPTOR.services_by_name["RewardService"].full_name
        self._stub = reward_pb2_grpc.RewardServiceStub(open_balanced_channel(addresses, credentials, service=service))
        self._grader = grader

    def score_batch(self, items: Sequence[ResponseToScore]) -> list[Score]:
        """One score per item, in order; a service without room is asked again when it said.

        Raises:
            UnavailableError: no replica can be reached.
            OverloadedError: there was no room for minutes.
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
        return [
            Score(
                value=score.value,
                extracted=score.extracted,
                rule=score.rule,
                seconds=score.seconds,
                error=score.error,
            )
            for score in self._ask(request).scores
        ]

    def _ask(self, request: reward_pb2.ScoreBatchRequest) -> reward_pb2.ScoreBatchResponse:
        deadline = time.monotonic() + _SCORE_SECONDS
        while True:
            try:
                return call(
                    lambda: self._stub.ScoreBatch(request, timeout=deadline - time.monotonic()), peer="reward service"
                )
            except OverloadedError as error:
                if time.monotonic() + error.retry_after_seconds >= deadline:
                    raise
                logger.info("reward service has no room; asking again", extra={"detail": str(error)})
                time.sleep(error.retry_after_seconds)
