"""Checks a grader against labels: each is right for itself and its rewritings, and wrong for its neighbour. Pure.

A rewriting changes the spelling by a rule that cannot change the meaning; a label that a rule does not fit has no such
rewriting.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

from services.reward.scorer import Grader

_INTEGER = re.compile(r"-?[0-9]+")
_SIMPLE_FRACTION = re.compile(r"(-?)\\[dt]?frac\{([0-9]+)\}\{([0-9]+)\}")
_DECIMAL = re.compile(r"-?[0-9]*\.[0-9]+")
_LONG_INTEGER = re.compile(r"-?[0-9]{4,}")
_NAME = re.compile(r"[a-z]\s*=\s*")
_PAIR = re.compile(r"\(([^(),]+),([^(),]+)\)")


def _decimal_point(label: str) -> str | None:
    return f"{label}.0" if _INTEGER.fullmatch(label) else None


def _thousands(label: str) -> str | None:
    return f"{int(label):,}" if _LONG_INTEGER.fullmatch(label) else None


def _latex_thousands(label: str) -> str | None:
    return f"{int(label):,}".replace(",", r",\!") if _LONG_INTEGER.fullmatch(label) else None


def _doubled_fraction(label: str) -> str | None:
    if match := _SIMPLE_FRACTION.fullmatch(label):
        sign, top, bottom = match.groups()
        return rf"{sign}\frac{{{2 * int(top)}}}{{{2 * int(bottom)}}}"
    return rf"\frac{{{2 * int(label)}}}{{2}}" if _INTEGER.fullmatch(label) else None


def _slashed_fraction(label: str) -> str | None:
    match = _SIMPLE_FRACTION.fullmatch(label)
    return f"{match.group(1)}{match.group(2)}/{match.group(3)}" if match else None


def _decimal_as_fraction(label: str) -> str | None:
    if not _DECIMAL.fullmatch(label):
        return None
    value = Fraction(label)
    return rf"\frac{{{value.numerator}}}{{{value.denominator}}}"


def _unicode_minus(label: str) -> str | None:
    return label.replace("-", "−") if "-" in label and "\\begin" not in label else None


def _display_fractions(label: str) -> str | None:
    return label.replace(r"\frac", r"\dfrac") if r"\frac" in label else None


def _sized_brackets(label: str) -> str | None:
    return rf"\left({label[1:-1]}\right)" if _PAIR.fullmatch(label) else None


def _shorter_spaces(label: str) -> str | None:
    return label.replace(" ", "  ") if " " in label else None


REWRITINGS: dict[str, Callable[[str], str | None]] = {
    "itself": lambda label: label,
    "math delimiters": lambda label: f"${label}$" if "$" not in label else None,
    "parenthesis delimiters": lambda label: rf"\({label}\)",
    "full stop": lambda label: f"{label}.",
    "spaces around": lambda label: f"  {label} ",
    "bold": lambda label: rf"\mathbf{{{label}}}" if _INTEGER.fullmatch(label) else None,
    "name": lambda label: f"x = {label}" if _INTEGER.fullmatch(label) else None,
    "decimal point": _decimal_point,
    "thousands commas": _thousands,
    "LaTeX thousands commas": _latex_thousands,
    "doubled fraction": _doubled_fraction,
    "slashed fraction": _slashed_fraction,
    "decimal as fraction": _decimal_as_fraction,
    "unicode minus": _unicode_minus,
    "display fractions": _display_fractions,
    "sized brackets": _sized_brackets,
    "wider spaces": _shorter_spaces,
}
"""Name of each rule, and the rule; None where it does not fit."""


@dataclass(frozen=True, kw_only=True)
class AuditFinding:
    """A score that is not what it has to be."""

    row: int
    """Index of the label in the file, from 0."""
    check: str
    """The rewriting's name, or neighbour."""
    label: str
    """The label."""
    answer: str
    """What was boxed."""
    value: float
    """The score."""


@dataclass(frozen=True, kw_only=True)
class AuditReport:
    """How many scores were checked and which of them are wrong."""

    num_checked: Counter[str]
    """Scores by check."""
    findings: tuple[AuditFinding, ...]
    """The wrong ones."""


def audit_labels(labels: Sequence[str], grader: Grader) -> AuditReport:
    """The report on all labels: 1 for every rewriting of a label, 0 for the next row's label when that differs.

    A neighbour that differs by spaces, or by the name in front as in x=5, is the same label and is left out.
    """
    num_checked: Counter[str] = Counter()
    findings = []
    for row, check, answer, wanted in _checks(labels):
        judgement = grader.grade(prompt="", response=rf"</think>\boxed{{{answer}}}", label=labels[row])
        num_checked[check] += 1
        if judgement.value != wanted:
            findings.append(AuditFinding(row=row, check=check, label=labels[row], answer=answer, value=judgement.value))
    return AuditReport(num_checked=num_checked, findings=tuple(findings))


def _checks(labels: Sequence[str]) -> Iterator[tuple[int, str, str, float]]:
    for row, label in enumerate(labels):
        for name, rule in REWRITINGS.items():
            if (answer := rule(label)) is not None:
                yield row, name, answer, 1.0
        neighbour = labels[(row + 1) % len(labels)]
        if _unnamed(neighbour) != _unnamed(label):
            yield row, "neighbour", neighbour, 0.0


def _unnamed(label: str) -> str:
    return "".join(_NAME.sub("", label, count=1).split())
