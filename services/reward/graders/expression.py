"""What an expression is once read: a small tree of numbers, symbols and operations, bounded in size."""

from dataclasses import dataclass
from fractions import Fraction
from typing import TypeAlias


class UnreadableError(Exception):
    """The text is no expression that the parser knows."""


class TooComplexError(Exception):
    """The expression passes a bound on size, depth or the numbers in it; it is not evaluated."""


@dataclass(frozen=True)
class Number:
    """An exact number."""

    value: Fraction
    """Its value."""


@dataclass(frozen=True)
class Symbol:
    """A variable, or one of the constants pi, e, i and infinity."""

    name: str
    """Case-sensitive, without a backslash, with its subscript."""


@dataclass(frozen=True)
class Operation:
    """An operation on expressions."""

    name: str
    """One of + - * / ^ neg ± ∓, root (radicand, index), log (number, base), binom, abs, !, or a function's name."""
    arguments: tuple["Node", ...]
    """The operands in order."""


Node: TypeAlias = Number | Symbol | Operation

CONSTANTS = frozenset(("pi", "e", "i"))
"""Symbols with a value of their own."""


def symbols_of(node: Node) -> frozenset[str]:
    """The names of all variables."""
    if isinstance(node, Symbol):
        return frozenset() if node.name in CONSTANTS else frozenset((node.name,))
    if isinstance(node, Number):
        return frozenset()
    return frozenset().union(*(symbols_of(argument) for argument in node.arguments))


def uses(node: Node, names: frozenset[str]) -> bool:
    """Whether one of the symbols or operations occurs."""
    if isinstance(node, Symbol):
        return node.name in names
    if isinstance(node, Number):
        return False
    return node.name in names or any(uses(argument, names) for argument in node.arguments)


def signs_chosen(node: Node) -> list[Node]:
    """The expression for both choices of its plus-minus signs, or alone if it has none."""
    if not uses(node, frozenset("±∓")):
        return [node]
    return [_with_sign(node, plus="+", minus="-"), _with_sign(node, plus="-", minus="+")]


def _with_sign(node: Node, *, plus: str, minus: str) -> Node:
    if not isinstance(node, Operation):
        return node
    arguments = tuple(_with_sign(argument, plus=plus, minus=minus) for argument in node.arguments)
    name = {"±": plus, "∓": minus}.get(node.name, node.name)
    if len(arguments) == 1 and name in "+-":
        return arguments[0] if name == "+" else Operation("neg", arguments)
    return Operation(name, arguments)
