"""Grades the letter of a multiple-choice answer, as for GPQA (arXiv 2311.12022)."""

import re

from services.reward.graders.choices import choice_of_answer, choice_of_label
from services.reward.graders.extraction import answer_part_of, boxes, without_end_of_turn
from services.reward.scorer import Judgement, Rule

# Letters beyond J are no choices but words such as "I".
_LETTER = r"\(?\s*([A-Ja-j])\s*\)?(?![A-Za-z0-9'’])"
_STATED = re.compile(
    r"(?:answer|choice|option)(?:\s+(?:is|would be|should be))?\s*[:：=]?\s*(?:is\s*)?(?:(?:option|choice)\s*)?"
    + _LETTER,
    re.IGNORECASE,
)
_NAMED_FIRST = re.compile(
    rf"(?<![A-Za-z]){_LETTER}\s+is\s+(?:the\s+)?(?:correct|right|best|answer)(?![A-Za-z])", re.IGNORECASE
)
_SPACES = re.compile(r"[^\S\n]+")
_LINE_ENDS = re.compile(r" ?\n[ \n]*")
_MARKUP = re.compile(r"\*\*|__|`|\$|\\text(?:bf|rm|it)?\s*\{|\\[()\[\]]|[{}]")
_TAIL_CHARACTERS = 2000


class MultipleChoiceGrader:
    """A Grader for replies that choose a letter. Scores are 0 or 1.

    What counts is the last box, else the last letter said to be the answer, else a last line that is one letter.
    """

    def grade(self, *, prompt: str, response: str, label: str) -> Judgement:
        """See Grader.grade."""
        right = choice_of_label(label.strip()) or (label.strip().upper() if _is_letter(label.strip()) else None)
        if right is None:
            error = f"the label is {label[:60]!r}; wanted the letter of a choice, such as C"
            return Judgement(value=0.0, rule=Rule.BAD_LABEL, error=error)
        chosen = chosen_letter(without_end_of_turn(answer_part_of(response)))
        if chosen is None:
            return Judgement(value=0.0, rule=Rule.NO_ANSWER)
        return Judgement(value=float(chosen == right), rule=Rule.CHOICE, extracted=chosen)


def chosen_letter(text: str) -> str | None:
    """The letter that the text chooses, in upper case; None if it chooses none."""
    contents = boxes(text)
    if contents and contents[-1] is not None:
        return choice_of_answer(contents[-1].strip())
    plain = _SPACES.sub(" ", _MARKUP.sub("", text[-_TAIL_CHARACTERS:]))
    plain = _LINE_ENDS.sub("\n", plain)
    stated = [match.group(1) for match in _STATED.finditer(plain) if not _is_article(match)]
    if stated:
        return stated[-1].upper()
    if named := _NAMED_FIRST.findall(plain):
        return str(named[-1]).upper()
    lines = plain.strip().splitlines()
    return choice_of_answer(lines[-1].strip()) if lines else None


def _is_article(match: re.Match[str]) -> bool:
    """In "the answer is a number" the letter is a word."""
    rest = match.string[match.end() :]
    return match.group(1) in "aA" and rest[:1] == " " and rest.lstrip()[:1].isalpha()


def _is_letter(text: str) -> bool:
    return len(text) == 1 and text.isascii() and text.isalpha()
