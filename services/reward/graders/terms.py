"""The terms of a mix that look at the form of a response and not at its answer."""

from services.reward.graders.extraction import answer_part_of, boxes, is_thinking
from services.reward.scorer import Judgement, Rule


class FormatTerm:
    """A Grader: 1 for a response that ends its thinking, if it thinks, and has one box after it; else 0."""

    def grade(self, *, prompt: str, response: str, label: str) -> Judgement:
        """See Grader.grade."""
        contents = [] if is_thinking(response) else boxes(answer_part_of(response))
        is_good = len(contents) == 1 and bool((contents[0] or "").strip())
        return Judgement(value=float(is_good), rule=Rule.STRUCTURE)


class LengthTerm:
    """A Grader: 1 up to a number of characters, falling linearly to 0 at another one."""

    def __init__(self, *, soft_characters: int, hard_characters: int) -> None:
        self._soft_characters = soft_characters
        self._hard_characters = hard_characters

    def grade(self, *, prompt: str, response: str, label: str) -> Judgement:
        """See Grader.grade."""
        share = (self._hard_characters - len(response)) / (self._hard_characters - self._soft_characters)
        return Judgement(value=min(1.0, max(0.0, share)), rule=Rule.STRUCTURE)
