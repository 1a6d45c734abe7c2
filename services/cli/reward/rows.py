"""Reads a .jsonl file of {prompt, reply, label}: what can be graded, and what is wrong with the rest, line by line."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from services.common.errors import ConfigError, InvalidInputError
from services.common.records import Score
from services.reward.failure_scores import failure_value
from services.reward.graders.specification import (
    MIX_PREFIX,
    GraderNameError,
    check_name,
    is_custom,
    is_remote,
    require_allowed,
    terms_of,
)
from services.reward.scorer import Rule
from services.reward.worker_process import GradeItem


@dataclass(frozen=True, kw_only=True)
class Row:
    """One line of the file. It has a score already when there is nothing to grade."""

    number: int
    """Line number, from 1."""
    item: GradeItem
    """What is graded."""
    score: Score | None
    """Its score when it cannot be graded; None otherwise."""
    is_bad_line: bool
    """The line itself breaks the contract; a bad label alone does not."""


def read_rows(path: Path, *, grader: str) -> list[Row]:
    """One row per line that is not empty, in order.

    Args:
        grader: for lines without a "grader" of their own.

    Raises:
        ConfigError: the file cannot be read.
    """
    return [_row(number, line, grader=grader) for number, line in _numbered_lines(path)]


def read_labels(path: Path) -> list[str]:
    """The label of every line that is not empty, in order.

    Raises:
        ConfigError: the file cannot be read.
        InvalidInputError: a line has no label, or the file has no lines.
    """
    labels = []
    for number, line in _numbered_lines(path):
        value, problem = _parse(line)
        label = _text(value.get("label"))
        if problem or not label or not label.strip():
            raise InvalidInputError(f"{path}:{number}: {problem or 'has no label'}; wanted an object with a label")
        labels.append(label)
    if not labels:
        raise InvalidInputError(f"{path}: has no lines; wanted one JSON object with a label a line")
    return labels


def _numbered_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror}); give an existing .jsonl file") from error
    # Only \n ends a line: JSON strings may hold the other separators that str.splitlines knows.
    for number, line in enumerate(data.removeprefix(b"\xef\xbb\xbf").split(b"\n"), start=1):
        if line.strip():
            yield number, line


def _row(number: int, line: bytes, *, grader: str) -> Row:
    value, problem = _parse(line)
    own_grader = value.get("grader", grader)
    reply, label = value.get("reply"), value.get("label")
    if not problem and "reply" not in value:
        problem = "has no reply; wanted an object with reply and label"
    problem = problem or _grader_problem(own_grader, grader)
    item = GradeItem(
        sample_id=str(number),
        grader=grader if problem else str(own_grader),
        prompt=_prompt_text(value.get("prompt")),
        response=_text(reply) or "",
        label=_text(label) or "",
    )
    score = None
    if problem:
        score = _failure(item, Rule.ERROR, f"line {number}: {problem}")
    elif _text(reply) is None:
        score = _failure(item, Rule.ERROR, f"reply is {_shown(reply)}; wanted text")
    elif _text(label) is None:
        score = _failure(item, Rule.BAD_LABEL, f"label is {_shown(label)}; wanted text or a number")
    return Row(number=number, item=item, score=score, is_bad_line=bool(problem))


def _parse(line: bytes) -> tuple[Mapping[str, object], str]:
    """The object of a line and an empty text; or an empty object and what is wrong with the line."""
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError as error:
        return {}, f"is no UTF-8 text (byte {error.start + 1} of the line); save the file as UTF-8"
    try:
        # Numbers keep the digits they were written with: an integer of twenty digits is no float.
        value = json.loads(text, parse_int=str, parse_float=str, parse_constant=str)
    except (json.JSONDecodeError, RecursionError) as error:
        return {}, f"is no JSON ({error}); wanted one JSON object a line"
    if not isinstance(value, dict):
        return {}, f"is {_shown(value)}; wanted an object with reply and label"
    return value, ""


def external_graders(grader: str) -> tuple[str, ...]:
    """The remote and custom graders in the name of a grader.

    Raises:
        InvalidInputError: there is no such grader.
    """
    try:
        check_name(grader)
    except GraderNameError as error:
        raise InvalidInputError(f"--grader: {error}") from error
    parts = [term.name for term in terms_of(grader)] if grader.startswith(MIX_PREFIX) else [grader]
    return tuple(part for part in parts if is_remote(part) or is_custom(part))


def _grader_problem(own_grader: object, grader: str) -> str:
    """What is wrong with a line's own grader; empty if nothing is. It may reach out only where the command's does."""
    if own_grader == grader:
        return ""
    try:
        require_allowed(str(own_grader), external_graders(grader))
    except GraderNameError as error:
        return str(error)
    return ""


def _text(value: object) -> str | None:
    """Texts and numbers (texts since _parse) as they are; None for anything else."""
    return value if isinstance(value, str) else None


def _prompt_text(prompt: object) -> str:
    """A text as it is, a list of chat messages as their contents; empty for anything else."""
    if isinstance(prompt, list):
        contents = (message.get("content") for message in prompt if isinstance(message, dict))
        return "\n".join(content for content in contents if isinstance(content, str))
    return _text(prompt) or ""


def _shown(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _failure(item: GradeItem, rule: Rule, error: str) -> Score:
    return Score(value=failure_value(item.grader), extracted="", rule=rule, seconds=0.0, error=error)
