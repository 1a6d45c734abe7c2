"""Turns the JSON lines of a service's log into lines for people."""

import json
from collections.abc import Iterable

_OWN_FIELDS = ("time", "level", "service", "logger", "event", "exception")
_MAX_WIDTH = 240


def readable_lines(lines: Iterable[str]) -> list[str]:
    """One line per event with its fields, exceptions unfolded; lines that are no JSON objects as they are."""
    readable = []
    for line in lines:
        readable.extend(_readable(line))
    return [line if len(line) <= _MAX_WIDTH else line[: _MAX_WIDTH - 1] + "…" for line in readable]


def _readable(line: str) -> list[str]:
    try:
        entry = json.loads(line)
    except ValueError:
        return [line]
    if not isinstance(entry, dict) or "event" not in entry:
        return [line]
    fields = " ".join(f"{key}={value}" for key, value in entry.items() if key not in _OWN_FIELDS)
    head = f"{entry.get('time', '')} {entry.get('level', '')} {entry['event']} {fields}".strip()
    return [head, *str(entry.get("exception", "")).splitlines()]
