"""Whether two structures are the same answer: order, brackets, names and sizes first, then their parts."""

from collections.abc import Sequence

from services.reward.graders.equality import Verdict, proportional, same_expression
from services.reward.graders.expression import Operation, UnreadableError
from services.reward.graders.parser import expression_of
from services.reward.graders.quantities import Quantity, same_quantity
from services.reward.graders.structures import (
    Bracketed,
    Difference,
    Listing,
    Matrix,
    Named,
    Relation,
    SetOf,
    UnionOf,
    Value,
    Words,
)
from services.reward.graders.words import plain_words
from services.reward.scorer import Rule

_DIFFERENT = Verdict(False, Rule.STRUCTURE)
_SWAPPED = {"<": ">", "le": "ge"}


def same_value(answer: Value, label: Value) -> Verdict:
    """The verdict.

    Raises:
        TooComplexError: a number passes a bound.
    """
    if isinstance(answer, Named | Relation) or isinstance(label, Named | Relation):
        return _same_statement(answer, label)
    answer_names, label_names = _assignments(answer), _assignments(label)
    if answer_names or label_names:
        return _same_assignments(answer, label)
    match answer, label:
        case Quantity(), Quantity():
            try:
                return same_quantity(answer, label)
            except UnreadableError:
                return Verdict(False, Rule.SYMBOLIC)
        case Words(), Words():
            return Verdict(_text_of(answer) == _text_of(label) != "", Rule.STRING)
        case (Listing() | SetOf(), Listing() | SetOf()):
            is_set = isinstance(answer, SetOf) or isinstance(label, SetOf)
            return _same_unordered(answer.items, label.items, is_set=is_set)
        case (SetOf(items=()), Words()) | (Words(), SetOf(items=())):
            words = answer if isinstance(answer, Words) else label
            return Verdict(isinstance(words, Words) and plain_words(words.text) == "no solution", Rule.STRING)
        case SetOf(items=(only,)), _:
            return same_value(only, label)
        case _, SetOf(items=(only,)):
            return same_value(answer, only)
        case UnionOf(), UnionOf():
            return _same_unordered(answer.items, label.items, is_set=True)
        case Bracketed(), Bracketed():
            if (answer.opening, answer.closing) != (label.opening, label.closing):
                return _DIFFERENT
            return _same_in_order(answer.items, label.items)
        case Difference(), Difference():
            return _same_in_order((answer.whole, answer.removed), (label.whole, label.removed))
        case Matrix(), Matrix():
            return _same_matrix(answer, label)
        case Matrix(), Bracketed(opening="(", closing=")"):
            return _same_column(answer, label)
        case Bracketed(opening="(", closing=")"), Matrix():
            return _same_column(label, answer)
    return _DIFFERENT


def _same_statement(answer: Value, label: Value) -> Verdict:
    match answer, label:
        case Named(), Named():
            verdict = same_value(answer.value, label.value) if _same_name(answer, label) else _DIFFERENT
            return verdict if verdict.is_equal else _same_equation(answer, label, verdict)
        case (Named() | Relation(), Named() | Relation()):
            return _same_equation(answer, label, _DIFFERENT)
        case Named(), _:
            if _assignments(label) or _is_tuple_name(answer):
                return _same_assignments(answer, label)
            return same_value(answer.value, label)
        case _, Named():
            if _assignments(answer) or _is_tuple_name(label):
                return _same_assignments(answer, label)
            return same_value(answer, label.value)
        case Relation(sign="="), Quantity():
            # "m + n = 204" answers what m + n is; "2x = 10" does not answer what x is.
            return _DIFFERENT if _is_multiple(answer.left) else same_value(answer.right, label)
    return _DIFFERENT


def _same_name(answer: Named, label: Named) -> bool:
    if answer.name == label.name:
        return True
    # y = 2x + 3 and f(x) = 2x + 3 are two ways to name a function.
    return "(" in answer.name + label.name and {answer.name[:1], label.name[:1]} & set("yY") != set()


def _is_tuple_name(named: Named) -> bool:
    return named.name.startswith("(")


def _is_multiple(value: Value) -> bool:
    return isinstance(value, Quantity) and isinstance(value.node, Operation) and value.node.name in "*/"


def _same_equation(answer: Named | Relation, label: Named | Relation, otherwise: Verdict) -> Verdict:
    """Equations are the same when left minus right side is proportional; inequalities when it is equal."""
    one, other = _as_difference(answer), _as_difference(label)
    if one is None or other is None or one[0] != other[0]:
        return otherwise
    try:
        if one[0] in ("=", "ne"):
            return Verdict(proportional(one[1], other[1]), Rule.SYMBOLIC)
        return same_expression(one[1], other[1])
    except UnreadableError:
        return otherwise


def _as_difference(value: Named | Relation) -> tuple[str, Operation] | None:
    """The sign, with < turned around, and left minus right side, when both are expressions."""
    if isinstance(value, Named):
        if not value.is_equation or not isinstance(value.value, Quantity):
            return None
        try:
            return "=", Operation("-", (expression_of(value.name), value.value.node))
        except UnreadableError:
            return None
    if not isinstance(value.left, Quantity) or not isinstance(value.right, Quantity):
        return None
    sides = (value.left.node, value.right.node)
    swapped = _SWAPPED.get(value.sign)
    return (swapped, Operation("-", sides[::-1])) if swapped else (value.sign, Operation("-", sides))


def _assignments(value: Value) -> dict[str, Value]:
    """The value of each name in "x = 1, y = 2" or "(x, y) = (1, 2)"; empty for anything else."""
    if isinstance(value, Listing):
        names = {item.name: item.value for item in value.items if isinstance(item, Named)}
        return names if len(names) == len(value.items) else {}
    if isinstance(value, Named) and _is_tuple_name(value) and isinstance(value.value, Bracketed):
        names_in_order = value.name.strip("()").split(",")
        if len(names_in_order) == len(value.value.items):
            return dict(zip(names_in_order, value.value.items, strict=True))
    return {}


def _same_assignments(answer: Value, label: Value) -> Verdict:
    """By name when both name their values; in the order given when only one side does."""
    one, other = _assignments(answer), _assignments(label)
    if one and other:
        if set(one) != set(other):
            return _DIFFERENT
        return _same_in_order([one[name] for name in other], list(other.values()))
    named, plain = (one, label) if one else (other, answer)
    if isinstance(plain, Named):
        plain = plain.value
    if isinstance(plain, Bracketed) and named:
        values = list(named.values())
        return _same_in_order(values, plain.items) if one else _same_in_order(plain.items, values)
    side = answer.value if isinstance(answer, Named) else answer
    other_side = label.value if isinstance(label, Named) else label
    if (side, other_side) != (answer, label):
        return same_value(side, other_side)
    return _DIFFERENT


def _same_in_order(answer: Sequence[Value], label: Sequence[Value]) -> Verdict:
    if len(answer) != len(label):
        return _DIFFERENT
    verdict = Verdict(True, Rule.STRUCTURE)
    for one, other in zip(answer, label, strict=True):
        verdict = same_value(one, other)
        if not verdict.is_equal:
            return verdict
    return verdict


def _same_unordered(answer: Sequence[Value], label: Sequence[Value], *, is_set: bool) -> Verdict:
    if is_set:
        answer, label = _distinct(answer), _distinct(label)
    if len(answer) != len(label):
        return _DIFFERENT
    verdict, left = Verdict(True, Rule.STRUCTURE), list(label)
    for one in answer:
        for index, other in enumerate(left):
            verdict = same_value(one, other)
            if verdict.is_equal:
                del left[index]
                break
        else:
            return Verdict(False, verdict.rule)
    return verdict


def _distinct(items: Sequence[Value]) -> list[Value]:
    distinct: list[Value] = []
    for item in items:
        if not any(item == other or same_value(item, other).is_equal for other in distinct):
            distinct.append(item)
    return distinct


def _same_matrix(answer: Matrix, label: Matrix) -> Verdict:
    if [len(row) for row in answer.rows] != [len(row) for row in label.rows]:
        return _DIFFERENT
    return _same_in_order([cell for row in answer.rows for cell in row], [cell for row in label.rows for cell in row])


def _same_column(matrix: Matrix, vector: Bracketed) -> Verdict:
    """A column vector may be written in a line."""
    if any(len(row) != 1 for row in matrix.rows):
        return _DIFFERENT
    return _same_in_order([row[0] for row in matrix.rows], vector.items)


def _text_of(words: Words) -> str:
    return plain_words(words.text) or "".join(words.text.split())
