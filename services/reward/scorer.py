"""What a grader is: a pure judgement on one response, wrapped so that untrusted text can never raise."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol


class Rule(StrEnum):
    """The rule that decided a score."""

    STRING = "string"
    """The spellings are the same, or one of the sides has no other meaning than its text."""
    NUMERIC = "numeric"
    """Exact numbers were compared, with their units."""
    SYMBOLIC = "symbolic"
    """Expressions were compared as functions."""
    STRUCTURE = "structure"
    """The kinds or sizes of lists, sets, tuples, intervals, equations or matrices decided."""
    CHOICE = "choice"
    """Letters of choices were compared."""
    TOO_COMPLEX = "too_complex"
    """A bound on size, depth or digits was passed before any work was started."""
    OVERLAP = "overlap"
    """Shared words were counted."""
    REMOTE = "remote"
    """An HTTP service decided."""
    CUSTOM = "custom"
    """A function of the recipe decided."""
    MIX = "mix"
    """A weighted sum of several graders and terms."""
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
