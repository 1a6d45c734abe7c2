"""The DAPO graders: an "Answer:" line or a box near the end of the reply; 1 if right, else -1 (arXiv 2503.14476)."""

from services.reward.graders.boxed import MAX_EXTRACTED_LENGTH
from services.reward.graders.comparison import compare
from services.reward.graders.extraction import answer_part_of, last_answer_line, last_box, without_end_of_turn
from services.reward.scorer import Judgement, Rule

# As far back from the end as verl's code of the paper looks for each form.
_BOX_CHARACTERS = 300
_STRICT_BOX_CHARACTERS = 100
_WRONG, _RIGHT = -1.0, 1.0


class AnswerLineGrader:
    """A Grader for replies whose last line is "Answer: ...", boxed or not, judged by its value."""

    def grade(self, *, prompt: str, response: str, label: str) -> Judgement:
        """See Grader.grade."""
        line = last_answer_line(answer_part_of(response))
        return _judged_by_value(line and (last_box(line) or line), label)


class BoxedLineGrader:
    """A Grader for replies with a box near the end, judged by its value."""

    def grade(self, *, prompt: str, response: str, label: str) -> Judgement:
        """See Grader.grade."""
        return _judged_by_value(last_box(_end_of(response, _BOX_CHARACTERS)), label)


class StrictBoxGrader:
    """A Grader for replies with a box at the end that holds the label letter by letter."""

    def grade(self, *, prompt: str, response: str, label: str) -> Judgement:
        """See Grader.grade."""
        answer = last_box(_end_of(response, _STRICT_BOX_CHARACTERS))
        if answer is None:
            return Judgement(value=_WRONG, rule=Rule.NO_ANSWER)
        value = _RIGHT if answer == label.strip() else _WRONG
        return Judgement(value=value, rule=Rule.STRING, extracted=answer[:MAX_EXTRACTED_LENGTH])


def _end_of(response: str, num_characters: int) -> str:
    return without_end_of_turn(answer_part_of(response))[-num_characters:]


def _judged_by_value(answer: str | None, label: str) -> Judgement:
    if not answer:
        return Judgement(value=_WRONG, rule=Rule.NO_ANSWER)
    verdict = compare(answer, label)
    value = _RIGHT if verdict.is_equal else _WRONG
    return Judgement(value=value, rule=verdict.rule, extracted=answer[:MAX_EXTRACTED_LENGTH])
