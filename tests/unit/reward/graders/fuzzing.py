"""Random replies that look like mathematics, made to be graded without an exception and in bounded time."""

import random
import time
from collections.abc import Mapping
from dataclasses import dataclass

from services.reward.scorer import Grader, Rule, judge

_CHARACTERS = "0123456789+-*/^_(){}[]|!=<>,.;:%$ '&−√½°²∞∪≤𝟛"
_WORDS = (
    r"12 1,234 3.14 1e5 99999999 x y n e i ab sin sqrt( pi and or cm million C (C) <think> </think> <|user|> "
    r"\frac{ \frac \sqrt \sqrt[ \left( \right) \{ \} \cup \in \pm \cdot \times \pi \infty \text{ ^\circ \sin \log_ "
    r"\ln \binom \\ \, \boxed{ \fbox{ \overline{ \le \ne \approx \% \$ \setminus \mathbb{R} \lfloor \rfloor "
    r"\begin{pmatrix} \end{pmatrix} ^{ _{ } } { ** Answer:"
)
_PIECES = (*_CHARACTERS, *_WORDS.split(), r"\text{ cm}", "\u200b", "\ud800", "\x00", "\n")
_KINDS = ("boxed", "math", "dapo", "dapo:boxed", "dapo:strict", "f1", "f1:boxed", "gpqa", "exact", "exact:boxed")
_LABELS = (
    "34",
    r"\frac{1}{2}",
    "(1,2)",
    r"\{1,2\}",
    "(3,4]",
    "x=5",
    r"\text{east}",
    "C",
    r"90^\circ",
    r"x^2+2x+1",
    "52_8",
)
_LABELS_AND_MORE = (
    *_LABELS,
    r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}",
    r"1 \pm \sqrt{19}",
    "50\\%",
    r"5\text{ cm}",
    "2x+3=y",
)


@dataclass(frozen=True)
class FuzzReport:
    """What became of the replies."""

    num_errors: int
    """Replies on which a grader raised."""
    first_error: str
    """The first of them with its message."""
    max_seconds: float
    """The longest time for one reply."""
    slowest: str
    """That reply."""


def fuzz(graders: Mapping[str, Grader], *, num_replies: int, seed: int) -> FuzzReport:
    """Grades random replies, of which about half have a closed box, against typical labels and against each other."""
    random_ = random.Random(seed)
    num_errors, first_error, max_seconds, slowest = 0, "", 0.0, ""
    for _ in range(num_replies):
        kind, label, reply = random_.choice(_KINDS), _label(random_), _reply(random_)
        started = time.perf_counter()
        judgement = judge(graders[kind], prompt="", response=reply, label=label)
        seconds = time.perf_counter() - started
        if judgement.rule == Rule.ERROR:
            num_errors += 1
            first_error = first_error or f"{kind} {reply!r} {label!r}: {judgement.error}"
        if seconds > max_seconds:
            max_seconds, slowest = seconds, f"{kind} {reply!r} {label!r}"
    return FuzzReport(num_errors, first_error, max_seconds, slowest)


def _label(random_: random.Random) -> str:
    return random_.choice(_LABELS_AND_MORE) if random_.random() < 0.7 else _expression(random_)


def _reply(random_: random.Random) -> str:
    answer = _expression(random_)
    return random_.choice((answer, rf"</think>\boxed{{{answer}}}", rf"so \boxed{{{answer}}}.", f"Answer: {answer}"))


def _expression(random_: random.Random) -> str:
    """Random pieces, sometimes one of them many times, sometimes a label with a piece changed."""
    pieces = [random_.choice(_PIECES) for _ in range(random_.choice((1, 2, 3, 5, 8, 13, 40)))]
    if random_.random() < 0.05:
        pieces.insert(random_.randrange(len(pieces)), random_.choice(_PIECES) * random_.choice((30, 300, 3000)))
    if random_.random() < 0.3:
        text = random_.choice(_LABELS_AND_MORE)
        cut = random_.randrange(len(text))
        return text[:cut] + random_.choice(_PIECES) + text[cut:]
    return "".join(pieces)
