"""A placement that runs nothing: tests decide which process dies."""

from collections.abc import Callable, Sequence
from pathlib import Path

from services.cli.placement.placement import ProcessSpec, ProcessStatus


class FakePlacement:
    """Records what it was asked for.

    Args:
        on_start: called with each spec; a test starts its in-process stand-in there.
    """

    def __init__(self, on_start: Callable[[ProcessSpec], None] = lambda spec: None) -> None:
        self.specs: dict[str, ProcessSpec] = {}
        self.stopped: list[str] = []
        self.is_closed = False
        self._exit_codes: dict[str, int] = {}
        self._on_start = on_start

    def kill(self, name: str, *, exit_code: int) -> None:
        """Lets the process be dead from now on."""
        self._exit_codes[name] = exit_code

    def start(self, spec: ProcessSpec) -> None:
        """Remembers the spec."""
        self.specs[spec.name] = spec
        self._on_start(spec)

    def statuses(self) -> list[ProcessStatus]:
        """Every started process that was not stopped."""
        return [
            ProcessStatus(name=name, exit_code=self._exit_codes.get(name), seconds=1.0)
            for name in self.specs
            if name not in self.stopped
        ]

    def last_log_lines(self, name: str, *, num_lines: int) -> list[str]:
        """The lines that a test wrote to the log."""
        path = self.specs[name].log_path
        return path.read_text().splitlines()[-num_lines:] if path.exists() else []

    def log_path(self, name: str) -> Path:
        """The spec's log."""
        return self.specs[name].log_path

    def stop(self, names: Sequence[str], *, grace_seconds: float) -> None:
        """Remembers the order."""
        self.stopped.extend(names)

    def close(self) -> None:
        """Remembers the call."""
        self.is_closed = True
