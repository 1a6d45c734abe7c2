r"""Cuts an answer at the commas, relations and rows that stand in no bracket. Linear in its length."""

import re
from collections.abc import Iterator

from services.reward.graders.expression import TooComplexError

_MAX_NESTING = 60
_MAX_OUTER_BRACES = 8
_OPENING, _CLOSING = "([{", ")]}"
_AND = re.compile(
    r"\\text\s*\{\s*,?\s*(?:and|or)\s*\}|(?<![A-Za-z])(?:and|or)(?![A-Za-z])|\\(?:lor|vee|land)(?![A-Za-z])"
)
_RELATIONS = re.compile(r"\\(le|ge|ne|in|approx|equiv)(?![A-Za-z])|([=<>])")
_SYSTEM = re.compile(r"\\begin\{(cases|aligned|align\*?|gathered)\}(.*)\\end\{\1\}", re.DOTALL)
_MATRIX = re.compile(r"\\begin\{([bpvVB]?matrix|array|smallmatrix)\}(?:\{[lcr|]*\})?(.*)\\end\{\1\}", re.DOTALL)


def split_top(text: str, separators: str) -> list[str]:
    """The parts between separators, each a single character, that stand in no bracket."""
    parts, start = [], 0
    for index in _top_level(text):
        if text[index] in separators:
            parts.append(text[start:index])
            start = index + 1
    return [*parts, text[start:]]


def split_top_command(text: str, command: str) -> list[str]:
    """The parts between occurrences of a command, such as \\cup, that stand in no bracket."""
    if command not in text:
        return [text]
    parts, start = [], 0
    for index in _top_level(text):
        end = index + len(command)
        if index >= start and text.startswith(command, index) and not text[end : end + 1].isalpha():
            parts.append(text[start:index])
            start = end
    return [*parts, text[start:]]


def conjunctions_as_commas(text: str) -> str:
    """The text with a comma for every "and" or "or" between answers."""
    text = _AND.sub(",", text)
    return re.sub(r",\s*,", ",", text)


def split_relations(text: str) -> tuple[list[str], list[str]]:
    """The sides of a chain of relations that stand in no bracket, and the signs between them."""
    top = set(_top_level(text))
    sides, signs, start = [], [], 0
    for match in _RELATIONS.finditer(text):
        if match.start() in top:
            sides.append(text[start : match.start()].strip())
            signs.append(match.group(1) or match.group(2))
            start = match.end()
    return [*sides, text[start:].strip()], signs


def bracket_content(text: str) -> tuple[str, str, str] | None:
    r"""Opening bracket, content and closing bracket when one pair encloses the text; of \{\}, the brackets are { and }.

    An interval may have two different brackets.
    """
    for opening, closing, left, right in ((r"\{", r"\}", "{", "}"), (r"\langle", r"\rangle", "⟨", "⟩")):
        if text.startswith(opening) and text.endswith(closing):
            content = text[len(opening) : -len(closing)]
            return (left, content.strip(), right) if _is_balanced(content) else None
    if len(text) >= 2 and text[0] in "([" and text[-1] in ")]" and _is_balanced(text[1:-1]):
        return text[0], text[1:-1].strip(), text[-1]
    return None


def matrix_rows(text: str) -> list[list[str]] | None:
    """The cells of the matrix that the text is; None if it is none."""
    match = _MATRIX.fullmatch(text)
    if match is None:
        return None
    rows = [row for row in re.split(r"\\\\|\\cr(?![A-Za-z])", match.group(2)) if row.strip()]
    return [[cell.strip() for cell in row.replace(r"\hline", "").split("&")] for row in rows]


def system_lines(text: str) -> str | None:
    """The lines of a system of equations, parted by commas; None if the text is none."""
    match = _SYSTEM.fullmatch(text)
    if match is None:
        # Outside of an environment a line break parts two answers.
        return None if r"\\" not in text or r"\begin" in text else text.replace(r"\\", ",")
    return ",".join(line.strip() for line in match.group(2).replace("&", "").split(r"\\") if line.strip())


def without_outer_braces(text: str) -> str:
    """The text without the group that encloses all of it."""
    for _ in range(_MAX_OUTER_BRACES):
        if not (text.startswith("{") and text.endswith("}") and _is_balanced(text[1:-1])):
            break
        text = text[1:-1].strip()
    return text


def _is_balanced(text: str) -> bool:
    depth = 0
    for index, character in enumerate(text):
        if character in _OPENING:
            depth += 1
        elif character in _CLOSING:
            depth -= 1
            if depth < 0:
                return False
        if character == "\\" and text.startswith((r"\langle", r"\rangle"), index):
            depth += 1 if text[index + 1] == "l" else -1
    return depth == 0


def _top_level(text: str) -> Iterator[int]:
    r"""Indices outside all brackets; \begin and \end bracket, too."""
    depth = 0
    for index, character in enumerate(text):
        if character in _OPENING or text.startswith((r"\begin", r"\langle"), index):
            depth += 1
            if depth > _MAX_NESTING:
                raise TooComplexError(f"brackets nested more than {_MAX_NESTING} deep")
        elif character in _CLOSING or text.startswith((r"\end", r"\rangle"), index):
            depth -= 1
        elif depth <= 0:
            yield index
