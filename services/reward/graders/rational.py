"""Exact values: of constants as fractions, and of rational functions modulo a large prime. Bounded before it starts."""

import math
from collections.abc import Mapping
from fractions import Fraction

from services.reward.graders.expression import Node, Number, Symbol, TooComplexError

_MAX_BITS = 20_000
_MAX_FACTORIAL = 1_000
_MAX_BINOMIAL = 2_000
PRIME = 141421356237309504880168872420969807877
"""A prime; two different rational functions agree at a random point modulo it once in about 10^35 tries.

It is the first one after the digits of the square root of 2: modulo a prime such as 2^127 - 1, 2^127 would be 1.
"""


class NotRationalError(Exception):
    """The value cannot be had by rational arithmetic alone, or does not exist."""


def exact_value(node: Node) -> Fraction:
    """The value of a constant expression.

    Raises:
        NotRationalError: it has symbols or irrational parts, or divides by zero.
        TooComplexError: a number on the way would pass the bound.
    """
    if isinstance(node, Number):
        return node.value
    if isinstance(node, Symbol):
        raise NotRationalError(node.name)
    return _bounded(_apply(node.name, [exact_value(argument) for argument in node.arguments]))


def _apply(name: str, values: list[Fraction]) -> Fraction:
    first = values[0]
    match name, values:
        case "neg", [_]:
            return -first
        case "+", [_, second]:
            return first + second
        case "-", [_, second]:
            return first - second
        case "*", [_, second]:
            return first * second
        case "/", [_, second] if second != 0:
            return first / second
        case "^", [_, second]:
            return _power(first, second)
        case "root", [_, second]:
            return _root(first, second)
        case "abs", [_]:
            return abs(first)
        case "floor", [_]:
            return Fraction(math.floor(first))
        case "ceil", [_]:
            return Fraction(math.ceil(first))
        case "!", [_]:
            return Fraction(math.factorial(_count(first, _MAX_FACTORIAL)))
        case "binom", [_, second]:
            return Fraction(math.comb(_count(first, _MAX_BINOMIAL), _count(second, _MAX_BINOMIAL)))
        case _:
            raise NotRationalError(name)


def _power(base: Fraction, exponent: Fraction) -> Fraction:
    if exponent.denominator != 1:
        if exponent.denominator > 64:
            raise NotRationalError("power")
        return _power(_root(base, Fraction(exponent.denominator)), Fraction(exponent.numerator))
    if base in (0, 1, -1):
        if base == 0 and exponent <= 0:
            raise NotRationalError("power of zero")
        return base ** (exponent.numerator % 2 if base == -1 else min(exponent.numerator, 1) if base == 0 else 1)
    bits = max(base.numerator.bit_length(), base.denominator.bit_length()) * abs(exponent.numerator)
    if bits > _MAX_BITS:
        raise TooComplexError("a power with too many digits")
    return Fraction(base**exponent.numerator)


def _root(radicand: Fraction, index: Fraction) -> Fraction:
    if index.denominator != 1 or not 2 <= index <= 64:
        raise NotRationalError("root")
    degree, sign = index.numerator, 1
    if radicand < 0:
        if degree % 2 == 0:
            raise NotRationalError("root of a negative number")
        radicand, sign = -radicand, -1
    top, bottom = _integer_root(radicand.numerator, degree), _integer_root(radicand.denominator, degree)
    if top is None or bottom is None:
        raise NotRationalError("root")
    return sign * Fraction(top, bottom)


def _integer_root(number: int, degree: int) -> int | None:
    if degree == 2:
        root = math.isqrt(number)
        return root if root * root == number else None
    low, high = 0, 1 << (number.bit_length() // degree + 1)
    while low < high:
        middle = (low + high + 1) // 2
        if middle**degree <= number:
            low = middle
        else:
            high = middle - 1
    return low if low**degree == number else None


def _count(value: Fraction, largest: int) -> int:
    if value.denominator != 1 or value < 0:
        raise NotRationalError("no count")
    if value > largest:
        raise TooComplexError(f"{value} passes the bound of {largest}")
    return value.numerator


def _bounded(value: Fraction) -> Fraction:
    if max(value.numerator.bit_length(), value.denominator.bit_length()) > _MAX_BITS:
        raise TooComplexError("a number with too many digits")
    return value


def modular_value(node: Node, point: Mapping[str, int]) -> int:
    """The value of a rational function at a point, modulo PRIME.

    Raises:
        NotRationalError: it is no rational function, or has a pole there.
        TooComplexError: an exponent passes the bound.
    """
    if isinstance(node, Number):
        return node.value.numerator * _inverse(node.value.denominator) % PRIME
    if isinstance(node, Symbol):
        if node.name not in point:
            raise NotRationalError(node.name)
        return point[node.name]
    if node.name == "^":
        exponent = exact_value(node.arguments[1])
        if exponent.denominator != 1:
            raise NotRationalError("power")
        base = modular_value(node.arguments[0], point)
        return pow(base if exponent >= 0 else _inverse(base), abs(exponent.numerator), PRIME)
    values = [modular_value(argument, point) for argument in node.arguments]
    match node.name, values:
        case "neg", [first]:
            return -first % PRIME
        case "+", [first, second]:
            return (first + second) % PRIME
        case "-", [first, second]:
            return (first - second) % PRIME
        case "*", [first, second]:
            return first * second % PRIME
        case "/", [first, second]:
            return first * _inverse(second) % PRIME
        case _:
            raise NotRationalError(node.name)


def _inverse(value: int) -> int:
    if value % PRIME == 0:
        raise NotRationalError("division by zero")
    return pow(value, -1, PRIME)
