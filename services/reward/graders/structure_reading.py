r"""Reads an answer in normal spelling into its structure: "x=1 \text{ or } x=2", "(0,9) \cup (9,36)", "x \in [2,7]"."""

import re
from collections.abc import Sequence
from fractions import Fraction
from itertools import pairwise

from services.reward.graders.expression import (
    Number,
    Operation,
    Symbol,
    TooComplexError,
    UnreadableError,
    signs_chosen,
)
from services.reward.graders.quantities import Quantity, quantity_of
from services.reward.graders.splitting import (
    bracket_content,
    conjunctions_as_commas,
    matrix_rows,
    split_relations,
    split_top,
    split_top_command,
    system_lines,
    without_outer_braces,
)
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
from services.reward.graders.words import is_wordy

_MAX_CHARACTERS = 2000
_MAX_DEPTH = 12
_MAX_ITEMS = 40
_CALL = r"(?:\([A-Za-z0-9, ]{1,20}\))?"
_NAME = re.compile(
    rf"\\?[A-Za-z]{{1,12}}(?: ?_ ?(?:\{{[A-Za-z0-9, ]{{1,12}}\}}|[A-Za-z0-9]))?'{{0,3}} ?{_CALL}"
    r"|\( ?[A-Za-z](?: ?, ?[A-Za-z])+ ?\)|\|[A-Z]{1,3}\||\\text\s*\{[^{}]{1,60}\}"
    r"|(?:m ?)?\\(?:angle|overline|triangle|vec|hat)\s*\{? ?[A-Za-z]{1,4} ?\}?|\[[A-Z]{3,6}\]"
    r"|\\frac ?\{ ?d ?[A-Za-z]? ?\} ?\{ ?d ?[A-Za-z] ?\}|\\frac\{d\}\{d[a-z]\} ?[A-Za-z]"
)
_NO_NAMES = frozenset((r"\pi", r"\infty", "i", "e", r"\emptyset"))
_SET_BUILDER = re.compile(
    r"\s*([A-Za-z])\s*(?:\\in\s*\\mathbb\s*\{?\s*R\s*\}?\s*)?(?:\||:|\\(?:mid|colon)(?![A-Za-z]))(.*)", re.DOTALL
)
_REALS = re.compile(r"\\mathbb\s*\{?\s*R\s*\}?|\\text\s*\{\s*all real(?: number)?s\s*\}|\\R", re.IGNORECASE)
_EMPTY = re.compile(r"\\emptyset|\\text\s*\{\s*(?:the )?empty set\s*\}|(?:the )?empty set", re.IGNORECASE)
_INFINITY = Symbol("infinity")
_SWAPPED = {"<": ">", ">": "<", "le": "ge", "ge": "le"}


def value_of(text: str, *, depth: int = 0) -> Value:
    """The structure of a text; what is no mathematics is Words.

    Raises:
        TooComplexError: it passes a bound on length, nesting or items.
    """
    if len(text) > _MAX_CHARACTERS:
        raise TooComplexError(f"{len(text)} characters; at most {_MAX_CHARACTERS} are read")
    if depth > _MAX_DEPTH:
        raise TooComplexError(f"brackets nested more than {_MAX_DEPTH} deep")
    text = without_outer_braces(text.strip())
    if lines := system_lines(text):
        return value_of(lines, depth=depth + 1)
    if rows := matrix_rows(text):
        return Matrix(tuple(tuple(value_of(cell, depth=depth + 1) for cell in row) for row in rows))
    if (special := _special_set(text)) is not None:
        return special
    parts = _parts(text)
    if len(parts) > 1:
        return _listing([value_of(part, depth=depth + 1) for part in parts])
    for reader in (_set_operation, _relation, _bracketed):
        if (value := reader(text, depth)) is not None:
            return value
    return _single(text)


def _special_set(text: str) -> Value | None:
    if _EMPTY.fullmatch(text):
        return SetOf(())
    if _REALS.fullmatch(text) or text.casefold() in ("all real numbers", "all reals"):
        return _interval("(", None, None, ")")
    return None


def _parts(text: str) -> list[str]:
    if is_wordy(text) and not any(character in text for character in ",;=<>"):
        words = text.replace(r"\text{", " ").replace("}", " ").split()
        # "1 or x" has two answers; "none or some" is one in words.
        if not any(len(word) == 1 or word.isdigit() for word in words):
            return [text]
    parts = [part.strip() for part in split_top(conjunctions_as_commas(text), ",;")]
    parts = [part for part in parts if part]
    if len(parts) > _MAX_ITEMS:
        raise TooComplexError(f"{len(parts)} answers; at most {_MAX_ITEMS} are compared")
    return parts or [text]


def _listing(items: Sequence[Value]) -> Value:
    """Answers side by side; of one variable they become its values, and intervals a union."""
    first = items[0]
    if isinstance(first, Named):
        same = [item for item in items if isinstance(item, Named) and item.name == first.name]
        if len(same) == len(items):
            values = _joined([item.value for item in same])
            return Named(first.name, values, all(item.is_equation for item in same))
        if not any(isinstance(item, Named | Relation) for item in items[1:]):
            return Named(first.name, _joined([first.value, *items[1:]]), first.is_equation)
    return _joined(items, is_union_of_sets=False)


def _joined(items: Sequence[Value], *, is_union_of_sets: bool = True) -> Value:
    if is_union_of_sets and all(isinstance(item, Bracketed | UnionOf) for item in items):
        return _union(items)
    flat: list[Value] = []
    for item in items:
        flat += item.items if isinstance(item, Listing) else (item,)
    return Listing(tuple(flat))


def _union(items: Sequence[Value]) -> UnionOf:
    flat: list[Value] = []
    for item in items:
        flat += item.items if isinstance(item, UnionOf) else (item,)
    return UnionOf(tuple(flat))


def _set_operation(text: str, depth: int) -> Value | None:
    parts = split_top_command(text, r"\cup")
    if len(parts) > 1:
        return _union([value_of(part, depth=depth + 1) for part in parts])
    parts = split_top_command(text, r"\setminus")
    if len(parts) != 2:
        return None
    whole, removed = (value_of(part, depth=depth + 1) for part in parts)
    points = _exact_points(removed)
    if points and whole == _interval("(", None, None, ")"):
        return _reals_without(points)
    return Difference(whole, removed)


def _relation(text: str, depth: int) -> Value | None:
    sides, signs = split_relations(text)
    if "approx" in signs and signs[0] != "approx":
        # "x = 1/3 ≈ 0.33" means 1/3.
        cut = signs.index("approx")
        sides, signs = sides[: cut + 1], signs[:cut]
    if not signs or not all(sides):
        return None
    if all(sign in ("=", "equiv", "approx") for sign in signs):
        return _equation(sides[0], sides[-1], depth)
    if signs == ["in"] and _is_name(sides[0]):
        return Named(_compact(sides[0]), value_of(sides[1], depth=depth + 1), False)
    if (named := _bounds(sides, signs, depth)) is not None:
        return named
    if len(signs) != 1:
        raise TooComplexError(f"{len(signs)} relations in a row")
    left, right = (value_of(side, depth=depth + 1) for side in sides)
    return Relation(signs[0], left, right)


def _equation(left: str, right: str, depth: int) -> Value:
    if _is_name(left):
        return Named(_compact(left), value_of(right, depth=depth + 1), True)
    if _is_name(right):
        return Named(_compact(right), value_of(left, depth=depth + 1), True)
    return Relation("=", value_of(left, depth=depth + 1), value_of(right, depth=depth + 1))


def _bounds(sides: list[str], signs: list[str], depth: int) -> Named | None:
    """The interval that "x > 5", "5 < x" or "2 < x <= 3" means."""
    if len(signs) == 1 and _is_name(sides[0]) and _is_name(sides[1]):
        return None
    if len(signs) == 1 and _is_name(sides[1]):
        sides, signs = [sides[1], sides[0]], [_SWAPPED.get(signs[0], signs[0])]
    if len(signs) == 1 and _is_name(sides[0]):
        bound = value_of(sides[1], depth=depth + 1)
        return _half_line(_compact(sides[0]), signs[0], bound)
    if len(signs) != 2 or not _is_name(sides[1]):
        return None
    if all(sign in (">", "ge") for sign in signs):
        sides, signs = sides[::-1], [_SWAPPED[sign] for sign in reversed(signs)]
    if not all(sign in ("<", "le") for sign in signs):
        return None
    low, high = (value_of(side, depth=depth + 1) for side in (sides[0], sides[2]))
    interval = _interval("(" if signs[0] == "<" else "[", low, high, ")" if signs[1] == "<" else "]")
    return Named(_compact(sides[1]), interval, False)


def _half_line(name: str, sign: str, bound: Value) -> Named | None:
    if sign in (">", "ge"):
        return Named(name, _interval("(" if sign == ">" else "[", bound, None, ")"), False)
    if sign in ("<", "le"):
        return Named(name, _interval("(", None, bound, ")" if sign == "<" else "]"), False)
    points = _exact_points(bound)
    return Named(name, _reals_without(points), False) if sign == "ne" and points else None


def _interval(opening: str, low: Value | None, high: Value | None, closing: str) -> Bracketed:
    """None stands for the infinite end."""
    minus_infinity = Quantity(node=Operation("neg", (_INFINITY,)))
    return Bracketed(opening, closing, (low or minus_infinity, high or Quantity(node=_INFINITY)))


def _reals_without(points: Sequence[Fraction]) -> UnionOf:
    bounds: list[Value | None] = [None, *(Quantity(node=Number(point)) for point in sorted(points)), None]
    return UnionOf(tuple(_interval("(", low, high, ")") for low, high in pairwise(bounds)))


def _exact_points(value: Value) -> list[Fraction]:
    """The numbers of a number, list or set of numbers; none if there is anything else."""
    items = value.items if isinstance(value, SetOf | Listing) else (value,)
    points = []
    for item in items:
        node = item.node if isinstance(item, Quantity) else None
        if isinstance(node, Operation) and node.name == "neg" and isinstance(node.arguments[0], Number):
            points.append(-node.arguments[0].value)
        elif isinstance(node, Number):
            points.append(node.value)
        else:
            return []
    return points


def _bracketed(text: str, depth: int) -> Value | None:
    content = bracket_content(text)
    if content is None:
        return None
    opening, inner, closing = content
    if opening == "{":
        if (match := _SET_BUILDER.fullmatch(inner)) is not None:
            return value_of(match.group(2), depth=depth + 1)
        parts = [part for part in split_top(inner, ",;") if part.strip()]
        values = [value_of(part, depth=depth + 1) for part in parts[: _MAX_ITEMS + 1]]
        joined = _joined(values, is_union_of_sets=False)
        return SetOf(joined.items if isinstance(joined, Listing) else (joined,))
    parts = [part for part in split_top(inner, ",;") if part.strip()]
    if len(parts) > _MAX_ITEMS:
        raise TooComplexError(f"{len(parts)} entries; at most {_MAX_ITEMS} are compared")
    if len(parts) > 1:
        items = tuple(value_of(part, depth=depth + 1) for part in parts)
        return Bracketed("(" if opening == "⟨" else opening, ")" if closing == "⟩" else closing, items)
    is_group = (opening == "(" and closing == ")") or (parts and parts[0].lstrip().startswith(r"\begin"))
    return value_of(inner, depth=depth + 1) if parts and is_group else None


def _single(text: str) -> Value:
    try:
        quantity = quantity_of(text)
    except UnreadableError:
        return Words(text)
    nodes = signs_chosen(quantity.node)
    if len(nodes) == 1:
        return quantity
    return Listing(tuple(Quantity(node=node, unit=quantity.unit, is_percent=quantity.is_percent) for node in nodes))


def _is_name(text: str) -> bool:
    return bool(_NAME.fullmatch(text)) and text not in _NO_NAMES


def _compact(name: str) -> str:
    return "".join(name.split()).replace("{", "").replace("}", "")
