"""Values of expressions to many digits at a point, real or complex. Every step is bounded before it starts."""

from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import TYPE_CHECKING

from services.reward.graders.expression import Node, Number, Operation, Symbol, TooComplexError, UnreadableError

if TYPE_CHECKING:
    from mpmath import mpc, mpf

DIGITS = 120
"""Digits that are carried."""
# Reducing a larger angle, or raising to a larger power, would cost more than it can tell.
_MAX_ANGLE = 10**6
_MAX_LOG_OF_POWER = 10**5
_MAX_GAMMA = 1000


class UndefinedError(Exception):
    """The expression has no value there, or none in the real numbers."""


def value_at(node: Node, point: Mapping[str, Fraction], *, is_real: bool) -> "mpf | mpc":
    """The value to about DIGITS digits.

    Args:
        is_real: a part of the expression without a real value makes the whole undefined.

    Raises:
        UndefinedError: no value.
        TooComplexError: a number on the way passes a bound.
    """
    import mpmath

    with mpmath.workdps(DIGITS):
        return _Evaluation(point, is_real=is_real).of(node)


class _Evaluation:
    def __init__(self, point: Mapping[str, Fraction], *, is_real: bool) -> None:
        import mpmath

        self._mp = mpmath
        self._point = point
        self._is_real = is_real
        self._functions: dict[str, Callable[[mpf | mpc], mpf | mpc]] = {
            "sin": mpmath.sin, "cos": mpmath.cos, "tan": mpmath.tan, "cot": mpmath.cot, "sec": mpmath.sec,
            "csc": mpmath.csc, "arcsin": mpmath.asin, "arccos": mpmath.acos, "arctan": mpmath.atan,
            "sinh": mpmath.sinh, "cosh": mpmath.cosh, "tanh": mpmath.tanh, "ln": mpmath.log, "exp": mpmath.exp,
            "abs": abs, "floor": mpmath.floor, "ceil": mpmath.ceil,
        }  # fmt: skip

    def of(self, node: Node) -> "mpf | mpc":
        """The node's value."""
        if isinstance(node, Number):
            return self._mp.mpf(node.value.numerator) / node.value.denominator
        if isinstance(node, Symbol):
            return self._symbol(node.name)
        try:
            value = self._apply(node, [self.of(argument) for argument in node.arguments])
        except (ZeroDivisionError, ValueError, OverflowError) as error:
            raise UndefinedError(node.name) from error
        if not self._mp.isfinite(value):
            raise UndefinedError(node.name)
        if isinstance(value, self._mp.mpc):
            if value.imag == 0:
                return value.real
            if self._is_real:
                raise UndefinedError(node.name)
        return value

    def _symbol(self, name: str) -> "mpf | mpc":
        if name == "pi":
            return +self._mp.pi
        if name == "e":
            return +self._mp.e
        if name == "i":
            return self._mp.mpc(0, 1)
        value = self._point[name]
        return self._mp.mpf(value.numerator) / value.denominator

    def _apply(self, node: Operation, values: list["mpf | mpc"]) -> "mpf | mpc":
        first = values[0]
        match node.name, values:
            case "neg", [_]:
                return -first
            case "+", [_, second]:
                return first + second
            case "-", [_, second]:
                return first - second
            case "*", [_, second]:
                return first * second
            case "/", [_, second]:
                return first / second
            case "^", [_, second]:
                return self._power(first, second, node.arguments[1])
            case "root", [_, second]:
                return self._root(first, second)
            case "log", [_, second]:
                return self._mp.log(first) / self._mp.log(second)
            case "!", [_]:
                return self._mp.gamma(self._bounded(first, _MAX_GAMMA) + 1)
            case "binom", [_, second]:
                return self._mp.binomial(self._bounded(first, _MAX_GAMMA), self._bounded(second, _MAX_GAMMA))
        if node.name not in self._functions:
            raise UnreadableError(f"{node.name} cannot be evaluated")
        if node.name not in ("abs", "ln", "arcsin", "arccos", "arctan"):
            self._bounded(first, _MAX_ANGLE if node.name != "exp" else _MAX_LOG_OF_POWER)
        return self._functions[node.name](first)

    def _power(self, base: "mpf | mpc", exponent: "mpf | mpc", written: Node) -> "mpf | mpc":
        if base == 0:
            if not self._mp.isinf(exponent) and self._mp.re(exponent) > 0:
                return self._mp.mpf(0)
            raise UndefinedError("power of zero")
        if abs(exponent) * (abs(self._mp.log(abs(base))) + 1) > _MAX_LOG_OF_POWER:
            raise TooComplexError("a power with too many digits")
        if isinstance(base, self._mp.mpf) and base < 0 and (odd := _odd_root(written)):
            root = -((-base) ** (self._mp.mpf(1) / odd.denominator))
            return root**odd.numerator
        return base**exponent

    def _root(self, radicand: "mpf | mpc", index: "mpf | mpc") -> "mpf | mpc":
        is_odd = isinstance(index, self._mp.mpf) and self._mp.isint(index) and int(index) % 2 == 1
        if is_odd and isinstance(radicand, self._mp.mpf) and radicand < 0:
            return -((-radicand) ** (1 / index))
        return radicand ** (1 / index) if radicand != 0 else self._mp.mpf(0)

    def _bounded(self, value: "mpf | mpc", largest: int) -> "mpf | mpc":
        if abs(value) > largest:
            raise TooComplexError(f"a number above {largest}")
        return value


def _odd_root(exponent: Node) -> Fraction | None:
    """The exponent as a fraction with an odd denominator above 1, whose powers of negative numbers are real."""
    if isinstance(exponent, Operation) and exponent.name == "/":
        top, bottom = exponent.arguments
        if isinstance(top, Number) and isinstance(bottom, Number) and bottom.value != 0:
            value = top.value / bottom.value
            return value if value.denominator > 1 and value.denominator % 2 == 1 else None
    return None
