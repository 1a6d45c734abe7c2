"""Finds the answer in a response: after the thinking, in the last box, on the last answer line. In linear time."""

import re

_THINK_START, _THINK_END, _RESPONSE_MARK = "<think>", "</think>", "###Response"
# \fbox is what some models write. "\boxed 34" means the word, although TeX would box one digit.
_BOX = re.compile(r"\\(?:boxed|fbox)(?![A-Za-z])(?:\s*(\{)|\s+([0-9A-Za-z]+))?")
# Each level is read once more; nobody boxes a box so often.
_MAX_NESTED_BOXES = 8
_END_OF_TURN = re.compile(r"<\|[A-Za-z_]{1,40}\|>|<[｜|][^<>]{1,40}[｜|]>|</s>|<eos>|<end_of_turn>|\[gMASK\]|<sop>")
_ANSWER_LINE = re.compile(r"answer[ \t*_`]{0,8}[:：][ \t*_`]{0,20}", re.IGNORECASE)
# The space that DAPO searches: arXiv 2503.14476, code of verl.
_ANSWER_LINE_CHARACTERS = 300
_TAGS = re.compile(r"</?(?:b|i|em|strong|p|br|span|div|u)\s*/?>", re.IGNORECASE)
_MARKDOWN = re.compile(r"\*\*|__|`")


def answer_part_of(response: str) -> str:
    """What follows the last </think> or response mark; everything without either; nothing while the thought goes on."""
    _, end_tag, rest = response.rpartition(_THINK_END)
    if _THINK_START in rest:
        return ""
    if end_tag:
        return rest
    return response.rpartition(_RESPONSE_MARK)[2]


def has_finished_thinking(response: str) -> bool:
    """Whether the response says where its answer begins."""
    return _THINK_END in response or _RESPONSE_MARK in response


def is_thinking(response: str) -> bool:
    """Whether the response stops within its thinking."""
    return _THINK_START in response.rpartition(_THINK_END)[2]


def boxes(text: str) -> list[str | None]:
    r"""The contents of the outer boxes in order, of nested boxes the inner one; None for one not closed."""
    contents: list[str | None] = []
    position = 0
    while match := _BOX.search(text, position):
        position = match.end()
        if match.group(2) is not None:
            contents.append(match.group(2))
        elif match.group(1) is None:
            contents.append(None)
        else:
            content = braced_text(text, match.end() - 1)
            contents.append(content if content is None else _innermost(content))
            position = len(text) if content is None else match.end() + len(content)
    return contents


def last_box(text: str) -> str | None:
    """The content of the last box without surrounding space; None if there is none, or it is empty or not closed."""
    contents = boxes(text)
    last = contents[-1] if contents else None
    return (last.strip() or None) if last is not None else None


def braced_text(text: str, start: int) -> str | None:
    r"""What stands between the brace at start and its partner; None when it has none. \{ and \} are no braces."""
    assert text[start] == "{"
    depth, index = 0, start
    while index < len(text):
        character = text[index]
        if character == "\\":
            index += 1
        elif character == "{":
            depth += 1
        elif character == "}":
            depth -= 1
            if depth == 0:
                return text[start + 1 : index]
        index += 1
    return None


def last_answer_line(text: str) -> str | None:
    """What follows the last "Answer:" near the end of the text, up to the end of its line; None if nothing does."""
    tail = _TAGS.sub("", without_end_of_turn(text)[-_ANSWER_LINE_CHARACTERS:])
    matches = list(_ANSWER_LINE.finditer(tail))
    if not matches:
        return None
    rest = tail[matches[-1].end() :].lstrip()
    line = rest.partition("\n")[0]
    return _MARKDOWN.sub("", line).strip().rstrip("*_").rstrip() or None


def without_end_of_turn(text: str) -> str:
    """The text without end-of-turn and role tokens."""
    return _END_OF_TURN.sub("", text).rstrip() if "<" in text or "[gMASK]" in text else text.rstrip()


def _innermost(content: str) -> str | None:
    for _ in range(_MAX_NESTED_BOXES):
        match = _BOX.search(content)
        if match is None:
            return content
        if match.group(1) is None:
            return match.group(2)
        inner = braced_text(content, match.end() - 1)
        if inner is None:
            return None
        content = inner
    return None
