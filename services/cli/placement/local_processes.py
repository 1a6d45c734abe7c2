"""Placement on this machine: one session per process, logs in files, nothing left behind."""

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from services.cli.placement.placement import ProcessSpec, ProcessStatus
from services.cli.placement.process_tree import MARK_VARIABLE, end_processes
from services.cli.placement.watchdog import remove_shared_memory
from services.common.errors import ConfigError

_POLL_SECONDS = 0.05
_TAIL_BYTES = 64 * 1024


class LocalProcesses:
    """Starts processes on this machine, each the leader of its own session.

    A watchdog process ends them all when this process dies without `close`.

    Args:
        shared_memory_prefix: segments in shared memory whose names begin so are removed at the end.
    """

    def __init__(self, *, shared_memory_prefix: str) -> None:
        self._mark = uuid.uuid4().hex
        self._prefix = shared_memory_prefix
        self._placed: dict[str, _Placed] = {}
        self._watchdog = subprocess.Popen(
            [sys.executable, "-P", "-m", "services.cli.placement.watchdog", self._mark],
            stdin=subprocess.PIPE,
            start_new_session=True,
            text=True,
        )
        self._tell_watchdog(f"shared {shared_memory_prefix}")

    def start(self, spec: ProcessSpec) -> None:
        """Starts the process with its log as standard output and error."""
        assert spec.name not in self._placed, f"{spec.name} was started before"
        spec.log_path.parent.mkdir(parents=True, exist_ok=True)
        environment = {**spec.environment, MARK_VARIABLE: f"{self._mark}/{spec.name}"}
        try:
            with spec.log_path.open("ab") as log:
                process = subprocess.Popen(
                    spec.command,
                    env=environment,
                    cwd=spec.working_directory,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
        except OSError as error:
            raise ConfigError(
                f"{spec.name}: {spec.command[0]} cannot be started ({error.strerror}); install the packages again"
            ) from error
        self._placed[spec.name] = _Placed(process=process, spec=spec, started=time.monotonic())
        self._tell_watchdog(f"leader {process.pid}")

    def statuses(self) -> list[ProcessStatus]:
        """Every started process that was not asked to stop."""
        return [placed.status(name) for name, placed in self._placed.items() if not placed.is_stopping]

    def last_log_lines(self, name: str, *, num_lines: int) -> list[str]:
        """The end of the process's log, of at most its last 64 KiB."""
        with self._placed[name].spec.log_path.open("rb") as log:
            log.seek(max(0, log.seek(0, os.SEEK_END) - _TAIL_BYTES))
            return log.read().decode(errors="replace").splitlines()[-num_lines:]

    def log_path(self, name: str) -> Path:
        """The spec's log."""
        return self._placed[name].spec.log_path

    def stop(self, names: Sequence[str], *, grace_seconds: float) -> None:
        """SIGTERM to each leader; after the grace SIGKILL to all that belongs to it."""
        stopping = [self._placed[name] for name in names if name in self._placed]
        for placed in stopping:
            placed.is_stopping = True
            if placed.process.poll() is None:
                with suppress(ProcessLookupError):
                    placed.process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + grace_seconds
        while time.monotonic() < deadline and any(placed.process.poll() is None for placed in stopping):
            time.sleep(_POLL_SECONDS)
        for placed in stopping:
            self._end(placed)

    def close(self) -> None:
        """Kills what is left, removes shared memory, and dismisses the watchdog."""
        for placed in self._placed.values():
            placed.is_stopping = True
        end_processes(leaders=[p.process.pid for p in self._placed.values()], mark=self._mark)
        for placed in self._placed.values():
            placed.process.wait()
        remove_shared_memory(self._prefix)
        self._tell_watchdog("done")
        if self._watchdog.stdin:
            with suppress(BrokenPipeError):
                self._watchdog.stdin.close()
        self._watchdog.wait()

    def _end(self, placed: "_Placed") -> None:
        end_processes(leaders=[placed.process.pid], mark=f"{self._mark}/{placed.spec.name}")
        placed.process.wait()

    def _tell_watchdog(self, line: str) -> None:
        assert self._watchdog.stdin
        with suppress(BrokenPipeError):
            self._watchdog.stdin.write(line + "\n")
            self._watchdog.stdin.flush()


@dataclass(kw_only=True)
class _Placed:
    """A started process."""

    process: subprocess.Popen[bytes]
    spec: ProcessSpec
    started: float
    ended: float | None = None
    is_stopping: bool = False

    def status(self, name: str) -> ProcessStatus:
        exit_code = self.process.poll()
        if exit_code is not None and self.ended is None:
            self.ended = time.monotonic()
        return ProcessStatus(name=name, exit_code=exit_code, seconds=(self.ended or time.monotonic()) - self.started)
