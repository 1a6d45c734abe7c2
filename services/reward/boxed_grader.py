r"""Grades the last \boxed{...} after the thinking: numbers by value, exactly; everything else as text."""

import re
from fractions import Fraction

from services.reward.scorer import Judgement, Rule

_THINK_START, _THINK_END = "<think>", "</think>"
_BOX = re.compile(r"\\boxed\s*(?=\{)")
# Python refuses to read integers of more than 4300 digits; no answer needs a tenth of that.
_MAX_NUMBER_LENGTH = 400
_MAX_EXTRACTED_LENGTH = 1000
_INTEGER = r"[0-9]+|[0-9]{1,3}(?:,[0-9]{3})+"
_NUMBER = re.compile(rf"([+-]?)(?:({_INTEGER})(?:\.([0-9]*))?|\.([0-9]+))")
_FRACTION = re.compile(r"([+-]?)(?:\\frac(?:\{([+-]?[0-9]+)\}|([0-9]))(?:\{([+-]?[0-9]+)\}|([0-9]))|([0-9]+)/([0-9]+))")


class BoxedGrader:
    """A Grader for replies that end with a boxed answer.

    The answer part is what follows the last </think>, or the whole reply when it never thinks; a thought that is not
    ended holds no answer. Scores are 0 or 1.
    """

    def __init__(self, *, require_single_box: bool) -> None:
        """With require_single_box, an answer part with several boxes scores 0; otherwise the last one counts."""
        self._require_single_box = require_single_box

    def grade(self, *, prompt: str, response: str, label: str) -> Judgement:
        """See Grader.grade."""
        answer_part = answer_part_of(response)
        starts = [match.end() for match in _BOX.finditer(answer_part)]
        answer = braced_text(answer_part, starts[-1]) if starts else None
        if answer is None:
            return Judgement(value=0.0, rule=Rule.NO_ANSWER)
        extracted = answer.strip()[:_MAX_EXTRACTED_LENGTH]
        if self._require_single_box and len(starts) > 1:
            return Judgement(value=0.0, rule=Rule.SEVERAL_ANSWERS, extracted=extracted)
        is_right, rule = compare(answer, label)
        return Judgement(value=float(is_right), rule=rule, extracted=extracted)


def answer_part_of(response: str) -> str:
    """What follows the last </think>; the whole response without thinking; nothing while the thought goes on."""
    _, end_tag, rest = response.rpartition(_THINK_END)
    if _THINK_START in rest:
        return ""
    return rest if end_tag else response


def braced_text(text: str, start: int) -> str | None:
    r"""What stands between the brace at start and its partner; None when it has none. \{ and \} are no braces."""
    assert text[start] == "{"
    depth, index = 0, start
    while index < len(text):
        character = text[index]
        if character == "\\":
            index += 1
        elif character == "{":
            depth += 1
        elif character == "}":
            depth -= 1
            if depth == 0:
                return text[start + 1 : index]
        index += 1
    return None


def compare(answer: str, label: str) -> tuple[bool, Rule]:
    """Whether the answer is the label, and the rule that decided: numeric when both are numbers."""
    normal_answer, normal_label = normalize(answer), normalize(label)
    answer_number, label_number = exact_number(normal_answer), exact_number(normal_label)
    if answer_number is not None and label_number is not None:
        return answer_number == label_number, Rule.NUMERIC
    return normal_answer == normal_label != "", Rule.STRING


def normalize(text: str) -> str:
    """The text without spacing, math delimiters and size commands, and with one spelling of minus and fraction."""
    text = text.strip().replace("−", "-")
    for command in ("\\left", "\\right", "\\!", "\\,", "\\;", "\\ ", "$"):
        text = text.replace(command, "")
    text = text.replace("\\dfrac", "\\frac").replace("\\tfrac", "\\frac").replace("{,}", ",")
    return "".join(text.split()).removesuffix(".")


def exact_number(text: str) -> Fraction | None:
    """The value of an integer, decimal or fraction in normal form; None for anything else, and for 1/0.

    Commas must part thousands: "1,234" is a number, "1,23" and "(1,234)" are not.
    """
    if len(text) > _MAX_NUMBER_LENGTH:
        return None
    if match := _NUMBER.fullmatch(text):
        sign, whole, decimals, only_decimals = match.groups()
        digits = f"{(whole or '0').replace(',', '')}.{decimals or only_decimals or '0'}"
        return Fraction(f"{sign}{digits}")
    if match := _FRACTION.fullmatch(text):
        sign, *parts = match.groups()
        numerator, denominator = (int(part) for part in parts if part is not None)
        if denominator != 0:
            return Fraction(numerator, denominator) * (-1 if sign == "-" else 1)
    return None
