"""What an answer can be: one quantity, words, a list, a set, brackets, a union, a relation, or a matrix."""

from dataclasses import dataclass
from typing import TypeAlias

from services.reward.graders.quantities import Quantity


@dataclass(frozen=True)
class Words:
    """An answer that is read as its text."""

    text: str
    """In normal spelling."""


@dataclass(frozen=True)
class Listing:
    """Answers side by side, as in "1 or -2": all of them, in any order."""

    items: tuple["Value", ...]
    """At least two."""


@dataclass(frozen=True)
class SetOf:
    """A set: any order, and repetition means nothing."""

    items: tuple["Value", ...]
    """Its elements; none for the empty set."""


@dataclass(frozen=True)
class Bracketed:
    """A tuple, vector or interval: the order and the kind of brackets count."""

    opening: str
    """( or [ or ⟨."""
    closing: str
    """) or ] or ⟩."""
    items: tuple["Value", ...]
    """At least two."""


@dataclass(frozen=True)
class UnionOf:
    """A union of sets, in any order."""

    items: tuple["Value", ...]
    """At least two."""


@dataclass(frozen=True)
class Difference:
    """A set without another."""

    whole: "Value"
    """The set."""
    removed: "Value"
    """What is taken away."""


@dataclass(frozen=True)
class Named:
    """A name and what it is equal to, or the set it lies in."""

    name: str
    """Such as x, f(x) or (x,y), without spaces."""
    value: "Value"
    """Its value, or the set of its values."""
    is_equation: bool
    """The sign is =."""


@dataclass(frozen=True)
class Relation:
    """An equation or inequality that is not solved for a name."""

    sign: str
    """One of = < > le ge ne."""
    left: "Value"
    """Left side."""
    right: "Value"
    """Right side; the last one of a chain."""


@dataclass(frozen=True)
class Matrix:
    """A matrix or column vector."""

    rows: tuple[tuple["Value", ...], ...]
    """Its rows."""


Value: TypeAlias = Quantity | Words | Listing | SetOf | Bracketed | UnionOf | Difference | Named | Relation | Matrix
