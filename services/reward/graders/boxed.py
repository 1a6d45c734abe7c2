r"""Grades the last \boxed{...} by its value: of what follows the thinking, or of the whole response."""

from services.reward.graders.comparison import compare
from services.reward.graders.extraction import answer_part_of, boxes, has_finished_thinking, is_thinking
from services.reward.scorer import Judgement, Rule

MAX_EXTRACTED_LENGTH = 1000
"""Longer answers are cut in the score, not for the judgement."""


class BoxedGrader:
    """A Grader for replies that end with a boxed answer.

    The answer part is what follows the last </think>, or the whole reply when it never thinks; a thought that is not
    ended holds no answer. Scores are 0 or 1.
    """

    def __init__(self, *, require_single_box: bool, require_think_end: bool = False) -> None:
        """Sets what costs a right answer its credit.

        Args:
            require_single_box: an answer part with several boxes scores 0; otherwise the last one counts.
            require_think_end: a response without </think> scores 0.
        """
        self._require_single_box = require_single_box
        self._require_think_end = require_think_end

    def grade(self, *, prompt: str, response: str, label: str) -> Judgement:
        """See Grader.grade."""
        if self._require_think_end and not has_finished_thinking(response):
            return Judgement(value=0.0, rule=Rule.NO_ANSWER)
        contents = boxes(answer_part_of(response))
        judgement = judge_last_box(contents, label)
        if self._require_single_box and len(contents) > 1 and judgement.extracted:
            return Judgement(value=0.0, rule=Rule.SEVERAL_ANSWERS, extracted=judgement.extracted)
        return judgement


class MathGrader:
    """A Grader that takes the last box of the whole response, unless that stops within its thinking: 0 or 1."""

    def grade(self, *, prompt: str, response: str, label: str) -> Judgement:
        """See Grader.grade."""
        return judge_last_box([] if is_thinking(response) else boxes(response), label)


def judge_last_box(contents: list[str | None], label: str) -> Judgement:
    """1 if the last box holds the label, else 0."""
    answer = (contents[-1] or "").strip() if contents else ""
    if not answer:
        return Judgement(value=0.0, rule=Rule.NO_ANSWER)
    verdict = compare(answer, label)
    return Judgement(value=float(verdict.is_equal), rule=verdict.rule, extracted=answer[:MAX_EXTRACTED_LENGTH])
