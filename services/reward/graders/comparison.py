"""Whether an answer is the label: the one judgement that the graders of mathematics share. Its time is bounded."""

import re
from fractions import Fraction

from services.reward.graders.choices import choice_of_answer, choice_of_label, is_marked_choice
from services.reward.graders.equality import Verdict
from services.reward.graders.expression import TooComplexError
from services.reward.graders.extraction import last_box, without_end_of_turn
from services.reward.graders.library import is_for_library, load_library, same_by_library
from services.reward.graders.matching import same_value
from services.reward.graders.numerals import exact_number
from services.reward.graders.spelling import normal_spelling
from services.reward.graders.structure_reading import value_of
from services.reward.graders.structures import Value
from services.reward.graders.words import is_wordy, same_words
from services.reward.scorer import Rule

# Longer texts are answers only if they are the label letter by letter.
_MAX_CHARACTERS = 4000
_THOUSANDS = re.compile(r"(?<![0-9.,])[0-9]{1,3}(?:,[0-9]{3})+(?![0-9]|,[0-9])")
_BRACKET = re.compile(r"[(\[]|\\\{")


def compare(answer: str, label: str) -> Verdict:
    """The verdict. Wrong is also what passes a bound, with the rule too_complex."""
    answer, label = answer.strip(), label.strip()
    if answer == label:
        return Verdict(label != "", Rule.STRING)
    if (plain := _plain_verdict(answer, label)) is not None:
        return plain
    if max(len(answer), len(label)) > _MAX_CHARACTERS:
        return Verdict(False, Rule.TOO_COMPLEX)
    answer, label = normal_spelling(without_end_of_turn(answer)), normal_spelling(_unboxed(label))
    if not answer or not label:
        return Verdict(False, Rule.STRING)
    if answer == label:
        return Verdict(True, Rule.STRING)
    if (plain := _plain_verdict(answer, label)) is not None and not ("," in answer + label and not plain.is_equal):
        return plain
    if (choice := _choice_verdict(answer, label)) is not None:
        return choice
    if is_wordy(label) and same_words(answer, label):
        return Verdict(True, Rule.STRING)
    try:
        return _structural_verdict(answer, label)
    except TooComplexError:
        return Verdict(False, Rule.TOO_COMPLEX)


def _plain_verdict(answer: str, label: str) -> Verdict | None:
    """The verdict on two plain numbers; None if one is anything else."""
    label_number = _plain_number(label)
    if label_number is None:
        return None
    answer_number = _plain_number(answer)
    return None if answer_number is None else Verdict(answer_number == label_number, Rule.NUMERIC)


def _plain_number(text: str) -> Fraction | int | None:
    if len(text) < 400 and text.isascii() and text.isdigit():
        return int(text)
    return None if "," in text else exact_number(text)


def _choice_verdict(answer: str, label: str) -> Verdict | None:
    letter = choice_of_label(label)
    if letter is None:
        return None
    chosen = choice_of_answer(answer)
    if chosen is None:
        return None
    if not is_marked_choice(label) and len(answer) == 1 and answer != letter:
        # A bare letter may be a variable, whose case counts.
        return Verdict(False, Rule.CHOICE)
    return Verdict(chosen == letter, Rule.CHOICE)


def _structural_verdict(answer: str, label: str) -> Verdict:
    if is_for_library(answer) or is_for_library(label):
        return same_by_library(answer, label)
    verdict = Verdict(False, Rule.STRUCTURE)
    for answer_value in _readings(answer):
        for label_value in _readings(label):
            verdict = same_value(answer_value, label_value)
            if verdict.is_equal:
                return verdict
    return verdict


def _readings(text: str) -> list[Value]:
    """The structure of a text; of "100,200" both the number and the list. Within brackets commas part entries."""
    values = [value_of(text)]
    if "," in text and not _BRACKET.search(text) and (joined := _THOUSANDS.sub(_without_commas, text)) != text:
        values.insert(0, value_of(joined))
    return values


def _without_commas(match: re.Match[str]) -> str:
    return match.group().replace(",", "")


def _unboxed(label: str) -> str:
    return (last_box(label) or label) if "boxed" in label or "fbox" in label else label


def warm_up() -> None:
    """Loads what compare loads when it is first needed, so that processes forked from this one need no files for it."""
    for answer, label in ((r"\sqrt{2}", r"\frac{2}{\sqrt{2}}"), (r"\sin x", r"\cos x"), (r"\ln 2", r"e^{i\pi}")):
        assert compare(answer, label).rule == Rule.SYMBOLIC
    load_library()
