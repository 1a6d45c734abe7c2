"""Pure maps between the reward service's records and its messages."""

from collections.abc import Sequence
from dataclasses import dataclass

from furlong.reward.v1 import reward_pb2

from services.common.errors import InvalidInputError
from services.common.records import Score
from services.reward.graders import GraderNameError, require_allowed
from services.reward.worker_process import GradeItem


@dataclass(frozen=True, kw_only=True)
class GraderNames:
    """What requests may ask for, besides the plain graders."""

    default: str
    """For requests that name none."""
    external: tuple[str, ...]
    """Remote and custom graders that may be named."""


def items_from_proto(
    message: reward_pb2.ScoreBatchRequest, *, names: GraderNames, max_batch_items: int
) -> list[GradeItem]:
    """The items of a request.

    Raises:
        InvalidInputError: too many items, or a grader that does not exist or may not be used.
    """
    if len(message.items) > max_batch_items:
        raise InvalidInputError(
            f"the batch has {len(message.items)} items; at most {max_batch_items} are wanted, split it or raise "
            "reward.max_batch_items"
        )
    return [item_from_proto(item, batch_grader=message.grader, names=names) for item in message.items]


def item_from_proto(message: reward_pb2.ScoreItem, *, batch_grader: str, names: GraderNames) -> GradeItem:
    """One item; its own grader goes before the batch's, and that before the default.

    Raises:
        InvalidInputError: its grader does not exist or may not be used.
    """
    grader = message.grader or batch_grader or names.default
    try:
        require_allowed(grader, names.external)
    except GraderNameError as error:
        raise InvalidInputError(str(error)) from error
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
