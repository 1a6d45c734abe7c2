"""The grammar of grader names.

    grader = plain | remote | custom | mix
    plain  = "boxed" | "math" | "dapo" | "dapo:boxed" | "dapo:strict" | "f1" | "f1:boxed" | "gpqa" | "exact"
           | "exact:boxed"
    remote = "remote:" URL                          an http or https address
    custom = [package "."] module ":" function      a function (prompt, response, label) -> float
    mix    = "mix:" term ("," term)*                the weighted sum of the terms
    term   = weight "*" (plain | remote | custom | "format" | "length:" soft "-" hard)

In a mix, commas within a URL are written %2C. "format" is 1 for a response that ends its thinking, if it thinks, and
has one box after it, else 0. "length:2000-4000" is 1 up to 2000 characters and falls linearly to 0 at 4000.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

GRADER_NAMES = (
    "boxed", "math", "dapo", "dapo:boxed", "dapo:strict", "f1", "f1:boxed", "gpqa", "exact", "exact:boxed",
)  # fmt: skip
"""The graders without parameters."""
REMOTE_PREFIX, MIX_PREFIX = "remote:", "mix:"
FORMAT_TERM, LENGTH_PREFIX = "format", "length:"
_MAX_CHARACTERS = 1000
_MAX_TERMS = 16
_URL = re.compile(r"https?://[^\s/]+[^\s]*")
_CUSTOM = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")
_LENGTH = re.compile(r"length:([0-9]{1,9})-([0-9]{1,9})")


class GraderNameError(ValueError):
    """There is no grader of that name; the message says what is wanted."""


@dataclass(frozen=True, kw_only=True)
class MixTerm:
    """One term of a weighted sum."""

    weight: float
    """Its weight; may be negative."""
    name: str
    """A grader, format or length term."""


def terms_of(name: str) -> list[MixTerm]:
    """The terms of a mix in order.

    Raises:
        GraderNameError: it breaks the grammar.
    """
    parts = name.removeprefix(MIX_PREFIX).split(",")
    if len(parts) > _MAX_TERMS:
        raise GraderNameError(f"the grader {name[:60]!r} has {len(parts)} terms; at most {_MAX_TERMS} are wanted")
    return [_term(part.strip(), name) for part in parts]


def length_bounds(name: str) -> tuple[int, int]:
    """The soft and the hard bound of a length term.

    Raises:
        GraderNameError: it breaks the grammar.
    """
    match = _LENGTH.fullmatch(name)
    if match is None or int(match.group(1)) >= int(match.group(2)):
        raise GraderNameError(
            f"the term is {name[:60]!r}; wanted length:SOFT-HARD, two numbers of characters, SOFT < HARD"
        )
    return int(match.group(1)), int(match.group(2))


def is_remote(name: str) -> bool:
    """Whether the name is a remote grader's."""
    return name.startswith(REMOTE_PREFIX)


def is_custom(name: str) -> bool:
    """Whether the name is a custom function's."""
    head = name.partition(":")[0]
    is_known = head in ("remote", "mix", "length") or head in GRADER_NAMES
    return not is_known and bool(_CUSTOM.fullmatch(name))


def check_name(name: str) -> None:
    """Nothing if the name follows the grammar.

    Raises:
        GraderNameError: it does not.
    """
    if len(name) > _MAX_CHARACTERS:
        raise GraderNameError(f"the grader's name has {len(name)} characters; at most {_MAX_CHARACTERS} are wanted")
    if name.startswith(MIX_PREFIX):
        terms_of(name)
    elif is_remote(name):
        if not _URL.fullmatch(name.removeprefix(REMOTE_PREFIX)):
            raise GraderNameError(f"grader is {name!r}; wanted remote:http://HOST/PATH")
    elif name not in GRADER_NAMES and not is_custom(name):
        raise GraderNameError(
            f"grader is {name!r}; wanted one of {', '.join(GRADER_NAMES)}, remote:URL, package.module:function or "
            "mix:WEIGHT*GRADER,..."
        )


def require_allowed(name: str, external_graders: Sequence[str]) -> None:
    """Nothing if a request may ask for the grader.

    Raises:
        GraderNameError: it breaks the grammar, or names a remote or custom grader that is not among external_graders.
    """
    check_name(name)
    parts = [term.name for term in terms_of(name)] if name.startswith(MIX_PREFIX) else [name]
    for part in parts:
        if (is_remote(part) or is_custom(part)) and part not in external_graders:
            allowed = ", ".join(external_graders) or "none"
            raise GraderNameError(
                f"grader {part!r} reaches out of the service, and of such graders {allowed} may be used; add it to "
                "reward.external_graders"
            )


def _term(part: str, name: str) -> MixTerm:
    weight, star, grader = part.partition("*")
    value = _float(weight)
    if not star or value is None or not grader or grader.startswith(MIX_PREFIX):
        raise GraderNameError(
            f"the term {part[:60]!r} of {name[:60]!r} is none; wanted WEIGHT*GRADER, such as 0.9*boxed"
        )
    if grader.startswith(LENGTH_PREFIX):
        length_bounds(grader)
    elif grader != FORMAT_TERM:
        check_name(grader)
    return MixTerm(weight=value, name=grader)


def _float(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None
