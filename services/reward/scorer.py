"""What a grader is: a pure judgement on one response, wrapped so that untrusted text can never raise."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol


class Rule(StrEnum):
    """The rule that decided a score."""

    STRING = "string"
    NUMERIC = "numeric"
    NO_ANSWER = "no_answer"
    SEVERAL_ANSWERS = "several_answers"
    BAD_LABEL = "bad_label"
    TIMEOUT = "timeout"
    ERROR = "error"


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """What a grader thinks of one response."""

    value: float
    """The score."""
    rule: Rule
    """The rule that decided."""
    extracted: str = ""
    """The answer found; empty if none was."""
    error: str = ""
    """What went wrong; empty if nothing did."""


class Grader(Protocol):
    """Judges one response; pure, and free to be slow or to raise, because it runs in a killable worker."""

    def grade(self, *, prompt: str, response: str, label: str) -> Judgement:
        """The judgement. The label is never blank."""
        ...


def judge(grader: Grader, *, prompt: str, response: str, label: str) -> Judgement:
    """The grader's judgement; a blank label and any exception give a score of 0 with the reason."""
    if not label.strip():
        return Judgement(value=0.0, rule=Rule.BAD_LABEL, error="the label is blank; give the right answer")
    try:
        return grader.grade(prompt=prompt, response=response, label=label)
    except Exception as error:  # untrusted model output; counted in reward_samples_total by its rule
        return Judgement(value=0.0, rule=Rule.ERROR, error=f"{type(error).__name__}: {error}"[:500])
