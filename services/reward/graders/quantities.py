"""Single answers: an expression with a unit, a percent sign or a base; how two of them compare."""

import re
from dataclasses import dataclass
from fractions import Fraction

from services.reward.graders.equality import Verdict, same_expression
from services.reward.graders.expression import Node, Number, Operation
from services.reward.graders.numerals import exact_number
from services.reward.graders.parser import expression_of
from services.reward.graders.units import Unit, ratio_of, split_multiple, split_unit
from services.reward.scorer import Rule

_PERCENT = re.compile(r"(?:\\?%|\\?\s*\\text\s*\{\s*(?:\\?%|percent)\s*\}| ?percent)$")
_REPEATING = re.compile(r"(-?)([0-9]*)\.([0-9]*)\\(?:overline|bar|dot)\s*\{?\s*([0-9]+)\s*\}?")
_BASED = re.compile(r"([0-9A-Za-z]+) ?_ ?(?:\{ ?(?:\\text ?\{ ?)?([0-9]{1,2}|[a-z]{3,8}) ?\}?\}?|([0-9]{1,2}))")
_GROUPED_DIGITS = re.compile(r"^\( ?([0-9A-Z]{1,60}) ?\) ?_")
_BASES = {"two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8, "nine": 9, "ten": 10}
_MAX_REPEATING_DIGITS = 60


@dataclass(frozen=True, kw_only=True)
class Quantity:
    """A number or expression and what it measures."""

    node: Node
    """The expression."""
    unit: Unit | None = None
    """Its unit, if it names one."""
    is_percent: bool = False
    """It is so many hundredths."""
    digits: str = ""
    """Its digits as written when it names a base."""
    base: int = 0
    """The base it names; 0 if none."""


def quantity_of(text: str) -> Quantity:
    """The quantity that a text in normal spelling is.

    Raises:
        UnreadableError: it is none.
        TooComplexError: it passes a bound.
    """
    if (number := exact_number(text)) is not None:
        return Quantity(node=Number(number))
    if (match := _BASED.fullmatch(_GROUPED_DIGITS.sub(r"\1_", text))) and (based := _based_number(match)):
        return based
    if match := _PERCENT.search(text[-40:]):
        rest = text[: max(0, len(text) - 40) + match.start()].strip()
        return Quantity(node=_node_of(rest), is_percent=True)
    rest, unit = split_unit(text)
    return Quantity(node=_node_of(rest), unit=unit)


def same_quantity(answer: Quantity, label: Quantity) -> Verdict:
    """The verdict. A unit, percent sign or base that only one side names is taken as left out by the other.

    Raises:
        TooComplexError: a number passes a bound.
        UnreadableError: an operation has no value that could be computed.
    """
    if answer.base or label.base:
        return _same_based(answer, label)
    ratio = ratio_of(answer.unit, label.unit)
    if ratio is None:
        return Verdict(False, Rule.NUMERIC)
    scaled = answer.node if ratio == 1 else Operation("*", (answer.node, Number(ratio)))
    verdict = same_expression(scaled, label.node)
    if verdict.is_equal or answer.is_percent == label.is_percent:
        return verdict
    hundredth = Number(Fraction(1, 100))
    if answer.is_percent:
        return same_expression(Operation("*", (answer.node, hundredth)), label.node)
    return same_expression(answer.node, Operation("*", (label.node, hundredth)))


def _node_of(text: str) -> Node:
    text, multiple = split_multiple(text)
    number = exact_number(text)
    if number is None:
        number = _repeating_decimal(text)
    node = Number(number) if number is not None else expression_of(text)
    return node if multiple == 1 else Operation("*", (node, Number(Fraction(multiple))))


def _repeating_decimal(text: str) -> Fraction | None:
    match = _REPEATING.fullmatch(text)
    if match is None or len(text) > _MAX_REPEATING_DIGITS:
        return None
    sign, whole, fixed, period = match.groups()
    numerator = int(whole + fixed + period) - int("0" + whole + fixed)
    value = Fraction(numerator, (10 ** len(period) - 1) * 10 ** len(fixed))
    return -value if sign else value


def _based_number(match: re.Match[str]) -> Quantity | None:
    digits, named, plain = match.groups()
    name = named or plain
    base = int(name) if name.isdigit() else _BASES.get(name, 0)
    try:
        # Digits beyond 9 are capitals, so that x_2 and a_10 stay variables.
        value = int(digits, base) if 2 <= base <= 36 and digits == digits.upper() and digits[0].isdigit() else None
    except ValueError:
        return None
    if value is None or len(digits) > _MAX_REPEATING_DIGITS:
        return None
    return Quantity(node=Number(Fraction(value)), digits=digits.lstrip("0"), base=base)


def _same_based(answer: Quantity, label: Quantity) -> Verdict:
    """Numbers of two bases are equal by value; a bare number must have the digits that the label has in its base."""
    if answer.base and label.base:
        # The question asks for one base: 42 is no answer to "write 101010_2 in base 8".
        return Verdict(answer.base == label.base and answer.digits == label.digits, Rule.NUMERIC)
    if label.base:
        is_equal = isinstance(answer.node, Number) and str(answer.node.value) == label.digits
        return Verdict(is_equal, Rule.NUMERIC)
    return same_expression(answer.node, label.node) if answer.base == 10 else Verdict(False, Rule.NUMERIC)
