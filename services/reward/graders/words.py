r"""Answers in words: "\text{Evelyn}", "east", "no solution"."""

import re

_TEXT = re.compile(r"\\text\s*\{([^{}]*)\}")
_FILLERS = re.compile(r"^(?:an?|the) ")
# A point or colon between digits is part of a number, and a hyphen before one its sign.
_PUNCTUATION = re.compile(r"[\"'“”‘’`;!?*]|[.,:](?![0-9])")
_HYPHEN = re.compile(r"(?<=[A-Za-z])-(?=[A-Za-z])")
_WORD = re.compile(r"[^\W\d_]{2,}")
# As in lexer.py: so few letters may be a product.
_MAX_PRODUCT_LETTERS = 3
_COMMAND = re.compile(r"\\[A-Za-z]+")
# Words of one meaning. The key is what both become.
_SYNONYMS = {
    "none": "no solution", "no solutions": "no solution", "no real solution": "no solution",
    "no real solutions": "no solution", "there are no solutions": "no solution", "there is no solution": "no solution",
    "does not exist": "undefined", "dne": "undefined", "true": "yes", "false": "no",
}  # fmt: skip


def is_wordy(text: str) -> bool:
    """Whether the text, in normal spelling, is words rather than an expression."""
    plain = _TEXT.sub(r" \1 ", text)
    if "\\" in plain or not _WORD.search(plain):
        return False
    if _TEXT.search(text) and not any(character in plain for character in "+=^_<>"):
        return True
    if (
        " " in plain.strip()
        and any(map(str.isdigit, plain))
        and not any(character in plain for character in "+=^_<>*/")
    ):
        return True
    letters = sum(character.isalpha() or character.isspace() for character in plain)
    return letters >= 0.7 * len(plain)


def same_words(answer: str, label: str) -> bool:
    """Whether both are the same words; the case counts only where it tells AB from ab."""
    if plain_words(answer) != plain_words(label):
        return False
    answer, label = answer.strip(), label.strip()
    is_short = label.isalpha() and answer.isalpha() and len(label) <= _MAX_PRODUCT_LETTERS
    return not is_short or answer == label or (_has_word_case(answer) and _has_word_case(label))


def _has_word_case(text: str) -> bool:
    return text in (text.lower(), text.capitalize()) or text in ("YES", "NO")


def plain_words(text: str) -> str:
    """The words alone: lower case, no commands, punctuation, parentheses around them or leading article."""
    text = _TEXT.sub(r" \1 ", text)
    text = _PUNCTUATION.sub("", _HYPHEN.sub(" ", _COMMAND.sub(" ", text)))
    text = " ".join(text.replace("{", " ").replace("}", " ").split()).casefold()
    if text.startswith("(") and text.endswith(")"):
        text = text[1:-1].strip()
    text = _FILLERS.sub("", text)
    return _SYNONYMS.get(text, text)
