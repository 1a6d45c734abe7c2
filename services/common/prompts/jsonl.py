"""Reads a .jsonl file of prompts and labels; whatever is wrong is named with its line."""

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from services.common.errors import ConfigError, FurlongError, InvalidInputError
from services.common.prompts.chat import ChatMessage, render_chat, render_question
from services.common.prompts.tokenizer import Tokenizer
from services.common.records import Prompt


@dataclass(frozen=True, kw_only=True)
class PromptRow:
    """One line of a prompt file."""

    prompt: Prompt
    """The prompt, rendered and encoded."""
    question: str
    """What the last user message asks, without the template."""


def read_prompt_file(
    path: Path, *, tokenizer: Tokenizer, input_key: str, label_key: str, max_prompt_tokens: int
) -> list[PromptRow]:
    """The rows of the file in its order; empty lines are passed over.

    Raises:
        ConfigError: the file cannot be read.
        InvalidInputError: a line breaks the contract, or there is none; the message starts with file and line.
    """
    rows = []
    for number, line in _numbered_lines(path):
        source = f"{path}:{number}"
        try:
            row = _parse(line)
            question, text = _render(_value(row, input_key))
            label = _label(_value(row, label_key), label_key)
            token_ids = tokenizer.encode(text)
        except FurlongError as error:
            raise InvalidInputError(f"{source}: {error}") from error
        if len(token_ids) > max_prompt_tokens:
            raise InvalidInputError(
                f"{source}: the prompt has {len(token_ids)} tokens, more than data.max_prompt_tokens "
                f"{max_prompt_tokens}; shorten it or raise the limit"
            )
        prompt = Prompt(text=text, token_ids=token_ids, label=label, source=f"{path.name}:{number}")
        rows.append(PromptRow(prompt=prompt, question=question))
    if not rows:
        raise InvalidInputError(f"{path}: has no lines; wanted one JSON object with a prompt and a label a line")
    return rows


def _numbered_lines(path: Path) -> Iterator[tuple[int, str]]:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror}); give an existing .jsonl file") from error
    # Only \n ends a line: JSON strings may hold the other separators that str.splitlines knows.
    for number, raw in enumerate(data.removeprefix(b"\xef\xbb\xbf").split(b"\n"), start=1):
        try:
            line = raw.decode("utf-8").strip()
        except UnicodeDecodeError as error:
            raise InvalidInputError(
                f"{path}:{number}: is no UTF-8 text (byte {error.start + 1} of the line); save the file as UTF-8"
            ) from error
        if line:
            yield number, line


def _parse(line: str) -> dict[str, object]:
    try:
        value = json.loads(line)
    except (json.JSONDecodeError, RecursionError) as error:
        raise InvalidInputError(f"is no JSON ({error}); wanted one JSON object a line") from error
    if not isinstance(value, dict):
        raise InvalidInputError(f"is a JSON {type(value).__name__}; wanted an object with a prompt and a label")
    return value


def _value(row: dict[str, object], key: str) -> object:
    if key not in row:
        known = ", ".join(repr(name) for name in row) or "none"
        raise InvalidInputError(
            f"has no key {key!r} (its keys: {known}); name the right ones with --input-key and --label-key"
        )
    return row[key]


def _render(value: object) -> tuple[str, str]:
    """The question and the rendered text of a prompt value."""
    if isinstance(value, str):
        if not value.strip():
            raise InvalidInputError("the prompt is empty; remove the line or write a prompt")
        return value, render_question(value)
    if isinstance(value, list):
        messages = [_message(item) for item in value]
        text = render_chat(messages)
        return messages[-1].content, text
    raise InvalidInputError(f"the prompt is a JSON {type(value).__name__}; wanted a string or a list of chat messages")


def _message(item: object) -> ChatMessage:
    if isinstance(item, dict):
        role, content = item.get("role"), item.get("content")
        if isinstance(role, str) and isinstance(content, str):
            return ChatMessage(role=role, content=content)
    raise InvalidInputError(
        f"a chat message is {str(item)[:80]!r}; wanted an object with the strings 'role' and 'content'"
    )


def _label(value: object, key: str) -> str:
    if isinstance(value, str) and value.strip():
        return value
    if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        return str(value)
    raise InvalidInputError(f"the label under {key!r} is {str(value)[:80]!r}; wanted a non-empty string or a number")
