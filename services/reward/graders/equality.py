"""Whether two expressions are the same function: exactly where arithmetic is rational, else to many digits at points.

Two analytic expressions that agree to 90 digits at several random points are equal for every purpose of grading, and
unlike simplification this costs a bounded time. Real variables are meant unless the imaginary unit occurs; a point
where one side has no real value decides nothing.
"""

import random
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

from services.reward.graders.expression import Node, TooComplexError, symbols_of, uses
from services.reward.graders.numeric import DIGITS, UndefinedError, value_at
from services.reward.graders.rational import PRIME, NotRationalError, exact_value, modular_value
from services.reward.scorer import Rule

if TYPE_CHECKING:
    from mpmath import mpc, mpf

_NUM_MODULAR_POINTS = 3
_NUM_POINTS = 8
# Points at which both sides must have a value.
_MIN_SHARED_POINTS = 2
_AGREEING_DIGITS = 90
_IMAGINARY = frozenset("i")


@dataclass(frozen=True)
class Verdict:
    """Whether two answers are equal, and the rule that says so."""

    is_equal: bool
    """They are."""
    rule: Rule
    """The rule."""


def same_expression(first: Node, second: Node) -> Verdict:
    """The verdict; symmetric.

    Raises:
        TooComplexError: a number passes a bound.
        UnreadableError: an operation has no value that could be computed.
    """
    if first == second:
        return Verdict(True, Rule.SYMBOLIC if symbols_of(first) else Rule.NUMERIC)
    names = sorted(symbols_of(first) | symbols_of(second))
    try:
        if not names:
            return Verdict(_is_same_constant(first, second), Rule.NUMERIC)
        return Verdict(_agree_modulo_prime(first, second, names), Rule.SYMBOLIC)
    except NotRationalError:
        return Verdict(_agree_numerically(first, second, names), Rule.SYMBOLIC)


def proportional(first: Node, second: Node) -> bool:
    """Whether one expression is a constant multiple of the other, neither being zero.

    Raises:
        TooComplexError: a number passes a bound.
        UnreadableError: an operation has no value that could be computed.
    """
    names = sorted(symbols_of(first) | symbols_of(second))
    if not names:
        return False
    ratios = []
    is_real = not uses(first, _IMAGINARY) and not uses(second, _IMAGINARY)
    for point in _points(names):
        try:
            top, bottom = value_at(first, point, is_real=is_real), value_at(second, point, is_real=is_real)
        except UndefinedError:
            continue
        if (top == 0) != (bottom == 0):
            return False
        if bottom != 0:
            ratios.append(top / bottom)
    return len(ratios) >= _MIN_SHARED_POINTS and all(_is_close(ratio, ratios[0]) for ratio in ratios)


def _is_same_constant(first: Node, second: Node) -> bool:
    try:
        return exact_value(first) == exact_value(second)
    except TooComplexError:
        # Powers too large to write down still have remainders.
        return modular_value(first, {}) == modular_value(second, {})


def _agree_modulo_prime(first: Node, second: Node, names: list[str]) -> bool:
    random_ = random.Random(20240531)
    for _ in range(_NUM_MODULAR_POINTS):
        point = {name: random_.randrange(PRIME) for name in names}
        if modular_value(first, point) != modular_value(second, point):
            return False
    return True


def _agree_numerically(first: Node, second: Node, names: list[str]) -> bool:
    has_imaginary = uses(first, _IMAGINARY) or uses(second, _IMAGINARY)
    points = _points(names) if names else [{}]
    agreements = _agreements(first, second, points, is_real=bool(names) and not has_imaginary)
    if not agreements:
        # (-1)^n has no real value between the integers.
        agreements = _agreements(first, second, points, is_real=False)
    return len(agreements) >= min(_MIN_SHARED_POINTS, len(points)) and all(agreements)


def _agreements(first: Node, second: Node, points: list[dict[str, Fraction]], *, is_real: bool) -> list[bool]:
    """Whether both agree, at each point where both have a value, up to the first disagreement."""
    agreements: list[bool] = []
    for point in points:
        try:
            one, other = value_at(first, point, is_real=is_real), value_at(second, point, is_real=is_real)
        except UndefinedError:
            continue
        agreements.append(_is_close(one, other))
        if not agreements[-1]:
            break
    return agreements


def _points(names: list[str]) -> list[dict[str, Fraction]]:
    """Points around 1: half of them positive in every variable, the others of either sign."""
    random_ = random.Random(20240601)
    points = []
    for number in range(_NUM_POINTS):
        point = {}
        for name in names:
            size = Fraction(random_.randint(100, 3000), 997)
            point[name] = -size if number % 2 and random_.random() < 0.6 else size
        points.append(point)
    return points


def _is_close(one: "mpf | mpc", other: "mpf | mpc") -> bool:
    import mpmath

    with mpmath.workdps(DIGITS):
        return bool(abs(one - other) <= mpmath.mpf(10) ** -_AGREEING_DIGITS * max(1, abs(one), abs(other)))
