"""Pure maps between the reward service's records and its messages."""

from collections.abc import Sequence

from furlong.reward.v1 import reward_pb2

from services.common.errors import InvalidInputError
from services.common.records import Score
from services.reward.graders import GRADER_NAMES
from services.reward.worker_process import GradeItem


def items_from_proto(
    message: reward_pb2.ScoreBatchRequest, *, default_grader: str, max_batch_items: int
) -> list[GradeItem]:
    """The items of a request.

    Raises:
        InvalidInputError: too many items, or a grader that does not exist.
    """
    if len(message.items) > max_batch_items:
        raise InvalidInputError(
            f"the batch has {len(message.items)} items; at most {max_batch_items} are wanted, split it or raise "
            "reward.max_batch_items"
        )
    return [item_from_proto(item, default_grader=message.grader or default_grader) for item in message.items]


def item_from_proto(message: reward_pb2.ScoreItem, *, default_grader: str) -> GradeItem:
    """One item.

    Raises:
        InvalidInputError: its grader does not exist.
    """
    grader = message.grader or default_grader
    if grader not in GRADER_NAMES:
        raise InvalidInputError(f"grader is {grader!r}; wanted one of {', '.join(GRADER_NAMES)}")
    return GradeItem(
        sample_id=message.sample_id,
        grader=grader,
        prompt=message.prompt,
        response=message.response,
        label=message.label,
    )


def scores_to_proto(items: Sequence[GradeItem], scores: Sequence[Score]) -> reward_pb2.ScoreBatchResponse:
    """The reply: one score per item, in order."""
    return reward_pb2.ScoreBatchResponse(
        scores=[score_to_proto(item.sample_id, score) for item, score in zip(items, scores, strict=True)],
        num_errors=sum(bool(score.error) for score in scores),
    )


def score_to_proto(sample_id: str, score: Score) -> reward_pb2.Score:
    """One score."""
    return reward_pb2.Score(
        sample_id=sample_id,
        value=score.value,
        extracted=score.extracted,
        rule=score.rule,
        seconds=score.seconds,
        error=score.error,
    )
