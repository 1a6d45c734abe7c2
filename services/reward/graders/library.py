r"""Sums, integrals and limits go to math-verify, which knows them; small ones only, because it has no bounds itself."""

import logging
import re

from services.reward.graders.equality import Verdict
from services.reward.graders.expression import TooComplexError
from services.reward.scorer import Rule

EXAMPLES = {
    "int": (r"\int_0^1 x dx", r"\frac{1}{2}"),
    "iint": (r"\iint 1 dx dy", "x y"),
    "sum": (r"\sum_{k=1}^{3} k", "6"),
    "prod": (r"\prod_{k=1}^{3} k", "6"),
    "lim": (r"\lim_{x \to 0} \frac{\sin x}{x}", "1"),
    "det": (r"\det \begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix}", "-2"),
    "gcd": (r"\gcd(4, 6)", "2"),
    "max": (r"\max(2, 3)", "3"),
    "min": (r"\min(2, 3)", "2"),
}
"""By command, without its backslash: an answer that uses it, and an equal label."""

_COMMANDS = re.compile(rf"\\(?:{'|'.join(EXAMPLES)})(?![A-Za-z])")
_MAX_CHARACTERS = 200
_MAX_COMMANDS = 2
# Bounds of sums become work, so numbers stay below ten thousand.
_LARGE_NUMBER = re.compile(r"[0-9]{5}|!|\^\s*\{[^{}]*\^")


def is_for_library(text: str) -> bool:
    """Whether the text has an operator that only the library reads."""
    return bool(_COMMANDS.search(text))


def same_by_library(answer: str, label: str) -> Verdict:
    """What math-verify says.

    Raises:
        TooComplexError: an expression is too large to hand on.
    """
    for text in (answer, label):
        if len(text) > _MAX_CHARACTERS or _LARGE_NUMBER.search(text) or len(_COMMANDS.findall(text)) > _MAX_COMMANDS:
            raise TooComplexError("too large for a symbolic comparison")
    from math_verify import parse, verify

    # It warns at every call that its own time limit is off, which is what we want: the worker has one.
    for name in ("math_verify.parser", "math_verify.grader"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    gold, found = (parse(f"${text}$", parsing_timeout=None) for text in (label, answer))
    return Verdict(bool(gold and found and verify(gold, found, timeout_seconds=None)), Rule.SYMBOLIC)


def load_library() -> None:
    """Loads math-verify and all that its operators load when first used.

    Processes forked from this one then need no files for them; in one that may open none, an operator that was never
    used would fail to load, which math-verify takes for an expression that it cannot read.
    """
    for answer, label in EXAMPLES.values():
        same_by_library(answer, label)
