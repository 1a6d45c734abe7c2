"""One worker process as the pool holds it: asked with a hard time limit."""

import json
import math
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass

from services.common.errors import AbortedError, DeadlineError, UnavailableError
from services.reward.scorer import Judgement, Rule

_RECEIVE_BYTES = 65536
# A cancelled item frees its worker within this time.
_LOOK_SECONDS = 0.05


@dataclass(frozen=True, kw_only=True)
class WorkerLimits:
    """What one worker may use."""

    limit_seconds: float
    """Most time for one item."""
    memory_bytes: int
    """Most address space above what it needs to start."""


@dataclass(frozen=True, kw_only=True)
class GradeItem:
    """One response to grade."""

    sample_id: str
    """Echoed; may be empty."""
    grader: str
    """Name of the grader."""
    prompt: str
    """The prompt as text."""
    response: str
    """The response as text, special tokens included."""
    label: str
    """The right answer; blank gives a bad_label score."""


class WorkerProcess:
    """A running worker. One thread asks."""

    def __init__(self, connection: socket.socket, *, process_id: int, limits: WorkerLimits) -> None:
        self.process_id = process_id
        self._socket = connection
        self._limits = limits
        self._buffer = b""

    def grade(self, item: GradeItem, *, is_cancelled: Callable[[], bool]) -> Judgement:
        """The worker's judgement. After any error the worker is of no more use: kill it.

        Raises:
            DeadlineError: the limit passed.
            AbortedError: the item was cancelled meanwhile.
            UnavailableError: the process has died or talks nonsense.
        """
        message = json.dumps(
            {"grader": item.grader, "prompt": item.prompt, "response": item.response, "label": item.label}
        )
        deadline = time.monotonic() + self._limits.limit_seconds
        try:
            self._socket.settimeout(self._limits.limit_seconds)
            self._socket.sendall(message.encode() + b"\n")
            return _judgement(self._read_line(deadline=deadline, is_cancelled=is_cancelled))
        except TimeoutError as error:
            raise DeadlineError(f"the grader took more than {self._limits.limit_seconds:g} s") from error
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UnavailableError(f"the worker died: {error}") from error

    def close(self) -> None:
        """Ends the conversation; an idle worker ends, too."""
        self._socket.close()

    def _read_line(self, *, deadline: float, is_cancelled: Callable[[], bool]) -> bytes:
        while b"\n" not in self._buffer:
            remaining_seconds = deadline - time.monotonic()
            if remaining_seconds <= 0:
                raise TimeoutError("no whole line in time")
            self._socket.settimeout(min(remaining_seconds, _LOOK_SECONDS))
            try:
                data = self._socket.recv(_RECEIVE_BYTES)
            except TimeoutError:
                if is_cancelled():
                    raise AbortedError("nobody waits for this score any more") from None
                continue
            if not data:
                raise ConnectionResetError("the process closed its socket")
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line


def _judgement(line: bytes) -> Judgement:
    reply = json.loads(line)
    if not math.isfinite(reply["value"]):
        return Judgement(value=0.0, rule=Rule.ERROR, error=f"the grader's score is {reply['value']}, not a number")
    return Judgement(value=reply["value"], rule=Rule(reply["rule"]), extracted=reply["extracted"], error=reply["error"])
