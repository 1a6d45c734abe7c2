r"""Letters of choices: C, (C), \text{(C)}, "C. Paris"."""

import re

_WRAPPERS = re.compile(r"\\text\s*|[{}*$]|\\(?:boxed|fbox)")
_LABEL = re.compile(r"\(\s*([A-Za-z])\s*\)|([A-J])\s*[.):]?")
_ALONE = re.compile(r"(?:(?:option|choice|answer)\s*:?\s*)?[(\[]?\s*([A-Za-z])\s*[)\].:]*", re.IGNORECASE)
_WITH_CONTENT = re.compile(
    r"(?:(?:option|choice|answer)\s*:?\s*)?(?:\(\s*([A-Za-z])\s*\)|([A-Z])\s*[).:](?=\s|\\))", re.IGNORECASE
)


def choice_of_label(label: str) -> str | None:
    """The letter, in upper case, when the label is nothing but a choice; None otherwise."""
    match = _LABEL.fullmatch(_bare(label))
    return (match.group(1) or match.group(2)).upper() if match else None


def is_marked_choice(label: str) -> bool:
    """Whether the label can mean nothing but a choice: its letter stands in parentheses."""
    return _bare(label).startswith("(")


def choice_of_answer(answer: str) -> str | None:
    """The letter an answer begins with, in upper case: alone, or marked as a choice and followed by its content."""
    bare = _bare(answer)
    match = _ALONE.fullmatch(bare) or _WITH_CONTENT.match(bare)
    return next(group for group in match.groups() if group).upper() if match else None


def _bare(text: str) -> str:
    return " ".join(_WRAPPERS.sub("", text[:300].replace(r"\ ", " ")).split())
