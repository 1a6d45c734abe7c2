"""Grades by equality of the text, nothing normalised but the space around it."""

from services.reward.graders.boxed import MAX_EXTRACTED_LENGTH
from services.reward.graders.extraction import answer_part_of, last_box, without_end_of_turn
from services.reward.scorer import Judgement, Rule


class ExactGrader:
    """A Grader for answers that are to be repeated letter by letter. Scores are 0 or 1."""

    def __init__(self, *, is_boxed: bool) -> None:
        """With is_boxed the answer is the last box, otherwise everything after the thinking."""
        self._is_boxed = is_boxed

    def grade(self, *, prompt: str, response: str, label: str) -> Judgement:
        """See Grader.grade."""
        part = without_end_of_turn(answer_part_of(response)).strip()
        answer = (last_box(part) or "") if self._is_boxed else part
        if not answer:
            return Judgement(value=0.0, rule=Rule.NO_ANSWER)
        value = float(answer == label.strip())
        return Judgement(value=value, rule=Rule.STRING, extracted=answer[:MAX_EXTRACTED_LENGTH])
