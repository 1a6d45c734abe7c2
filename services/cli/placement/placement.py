"""Placement: which process runs where, its environment, its log, and its orderly end.

Services know nothing of it: they get a command line and a deployment file. Whoever places them (local processes, a
cluster scheduler) implements this protocol.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from services.common.errors import UnavailableError


@dataclass(frozen=True, kw_only=True)
class ProcessSpec:
    """One process to run."""

    name: str
    """Unique in the placement, such as "rollout-0"."""
    command: tuple[str, ...]
    """Program and arguments."""
    environment: Mapping[str, str]
    """The whole environment of the process."""
    log_path: Path
    """File that takes its standard output and standard error."""
    working_directory: Path
    """Folder it starts in."""


@dataclass(frozen=True, kw_only=True)
class ProcessStatus:
    """A placed process at this moment."""

    name: str
    """Its name."""
    exit_code: int | None
    """How it ended: negative is the number of the signal; None while it runs."""
    seconds: float
    """How long it ran."""


class ServiceDiedError(UnavailableError):
    """A placed process ended although nobody asked it to; its last log lines are at hand."""

    def __init__(self, status: ProcessStatus, *, log_path: Path, log_lines: Sequence[str]) -> None:
        super().__init__(
            f"service {status.name} ended after {status.seconds:.0f} s with {_describe(status.exit_code)}; "
            f"wanted it to run until the end; its log is {log_path}"
        )
        self.log_lines = tuple(log_lines)


class Placement(Protocol):
    """Runs processes and never leaves one behind.

    Invariants: a name is used once; `stop` and `close` return only when nothing of a process is left, children of its
    children included; when the caller itself is killed, everything it placed ends soon after.
    """

    def start(self, spec: ProcessSpec) -> None:
        """Starts the process and returns at once; readiness is the caller's to ask for.

        Raises:
            ConfigError: the program does not exist or cannot be run.
        """
        ...

    def statuses(self) -> list[ProcessStatus]:
        """Every process that was started and not asked to stop, in start order."""
        ...

    def last_log_lines(self, name: str, *, num_lines: int) -> list[str]:
        """The end of the process's log."""
        ...

    def log_path(self, name: str) -> Path:
        """Where the process's log is."""
        ...

    def stop(self, names: Sequence[str], *, grace_seconds: float) -> None:
        """Asks the processes to end, all at once, and ends by force what is left after the grace."""
        ...

    def close(self) -> None:
        """Ends whatever is left by force."""
        ...


def _describe(exit_code: int | None) -> str:
    if exit_code is None or exit_code >= 0:
        return f"exit code {exit_code}"
    return f"signal {-exit_code}" + (" (out of memory?)" if exit_code == -9 else "")
