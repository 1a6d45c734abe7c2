r"""Cuts an expression in normal spelling into tokens, at most a bounded number of them."""

import re
from dataclasses import dataclass

from services.reward.graders.expression import TooComplexError, UnreadableError

_MAX_TOKENS = 300
_TOKEN = re.compile(
    r"(?P<space>\s+)"
    r"|(?P<number>[0-9]+(?:,[0-9]{3}(?![0-9]))*(?:\.[0-9]+)?(?:[eE][+-]?[0-9]{1,3}(?![0-9A-Za-z.]))?|\.[0-9]+)"
    r"|(?P<command>\\[A-Za-z]+|\\[{}%|])"
    r"|(?P<word>[A-Za-z]+)"
    r"|(?P<sign>[-+*/^_(){}\[\]|!%':])"
)
FUNCTIONS = frozenset((
    "sin", "cos", "tan", "cot", "sec", "csc", "arcsin", "arccos", "arctan",
    "asin", "acos", "atan", "sinh", "cosh", "tanh", "ln", "log", "exp",
    "lg", "sqrt", "abs",
))  # fmt: skip
"""Names that take an argument, with or without a backslash."""
_NAMED = FUNCTIONS | {
    "pi",
    "infinity",
    "inf",
    "theta",
    "alpha",
    "beta",
    "gamma",
    "lambda",
    "phi",
    "omega",
    "floor",
    "ceil",
}
# Longer runs of letters are words, not products.
_MAX_PRODUCT_LETTERS = 3


@dataclass(frozen=True)
class Token:
    """One token."""

    kind: str
    """number, name, command, sign or end."""
    text: str
    """Commands without their backslash."""
    is_spaced: bool
    """White space comes before it."""


END = Token("end", "", False)
"""What follows the last token."""


def tokens_of(text: str) -> list[Token]:
    """The tokens of a text.

    Raises:
        UnreadableError: a character or word has no place in an expression.
        TooComplexError: there are too many.
    """
    tokens: list[Token] = []
    position, is_spaced = 0, False
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise UnreadableError(f"{text[position]!r} has no place in an expression")
        if len(tokens) > _MAX_TOKENS:
            raise TooComplexError(f"more than {_MAX_TOKENS} tokens")
        position = match.end()
        kind = match.lastgroup or ""
        if kind != "space":
            tokens += _cut(kind, match.group(), is_spaced)
        is_spaced = kind == "space"
    return tokens


def _cut(kind: str, text: str, is_spaced: bool) -> list[Token]:
    if kind == "command":
        return [Token("command", text[1:], is_spaced)]
    if kind != "word":
        return [Token(kind, text, is_spaced)]
    if text.lower() in _NAMED:
        return [Token("command", text.lower(), is_spaced)]
    if len(text) > _MAX_PRODUCT_LETTERS:
        return _named_within(text, is_spaced)
    return [Token("name", letter, is_spaced and index == 0) for index, letter in enumerate(text)]


def _named_within(text: str, is_spaced: bool) -> list[Token]:
    """A run such as "sinx" or "xsqrt": a known name with at most one letter on each side."""
    for start, end in ((0, 1), (1, 0), (1, 1)):
        middle = text[start : len(text) - end]
        if middle in _NAMED:
            letters = [Token("name", letter, is_spaced) for letter in text[:start]]
            return [
                *letters,
                Token("command", middle, False),
                *(Token("name", c, False) for c in text[len(text) - end :] if end),
            ]
    raise UnreadableError(f"{text[:40]!r} is a word")
