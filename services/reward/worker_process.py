"""One worker process as the pool holds it: start, ask with a hard time limit, kill."""

import json
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

from services.common.errors import DeadlineError, UnavailableError
from services.reward.graders import GraderSettings
from services.reward.scorer import Judgement, Rule
from services.reward.worker import READY_LINE

WORKER_COMMAND = (sys.executable, "-m", "services.reward.worker")
"""Starts the worker of the product."""
_START_SECONDS = 60.0
_RECEIVE_BYTES = 65536


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
    """A running worker. One thread asks; any thread may kill."""

    def __init__(self, command: Sequence[str], *, settings: GraderSettings, limits: WorkerLimits) -> None:
        """Starts the process and waits until it is ready.

        Args:
            command: the worker's command line, to which its socket, settings and limits are added.

        Raises:
            UnavailableError: it ended, or was not ready in time.
        """
        self._limits = limits
        self._socket, theirs = socket.socketpair()
        self._buffer = b""
        arguments = [str(theirs.fileno()), settings.to_json(), str(limits.limit_seconds), str(limits.memory_bytes)]
        with theirs:
            self._process = subprocess.Popen(
                [*command, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
            )
        try:
            is_ready = self._read_line(deadline=time.monotonic() + _START_SECONDS) + b"\n" == READY_LINE
        except OSError:
            is_ready = False
        if not is_ready:
            self.kill()
            raise UnavailableError(
                f"a grading worker was not ready after {_START_SECONDS:.0f} s (exit code {self._process.returncode}); "
                "see the reward service's log, and raise reward.memory_limit_mb if it names memory"
            )

    @property
    def process_id(self) -> int:
        """Id of the process."""
        return self._process.pid

    def grade(self, item: GradeItem) -> Judgement:
        """The worker's judgement.

        Raises:
            DeadlineError: the limit passed; kill this worker.
            UnavailableError: the process has died; kill this worker to clean up.
        """
        message = json.dumps(
            {"grader": item.grader, "prompt": item.prompt, "response": item.response, "label": item.label}
        )
        deadline = time.monotonic() + self._limits.limit_seconds
        try:
            self._socket.settimeout(self._limits.limit_seconds)
            self._socket.sendall(message.encode() + b"\n")
            line = self._read_line(deadline=deadline)
        except TimeoutError as error:
            raise DeadlineError(f"the grader took more than {self._limits.limit_seconds:g} s") from error
        except OSError as error:
            raise UnavailableError(f"the worker died: {error}") from error
        reply = json.loads(line)
        return Judgement(
            value=reply["value"], rule=Rule(reply["rule"]), extracted=reply["extracted"], error=reply["error"]
        )

    def kill(self) -> None:
        """Ends the process now and frees what it held. Killing twice does nothing."""
        self._process.kill()
        self._process.wait()
        self._socket.close()

    def _read_line(self, *, deadline: float) -> bytes:
        while b"\n" not in self._buffer:
            remaining_seconds = deadline - time.monotonic()
            if remaining_seconds <= 0:
                raise TimeoutError("no whole line in time")
            self._socket.settimeout(remaining_seconds)
            data = self._socket.recv(_RECEIVE_BYTES)
            if not data:
                raise ConnectionResetError("the process closed its socket")
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line
