"""The folder of one run's records: made, moved aside, resumed, and used by one process at a time."""

import fcntl
import json
import os
from dataclasses import asdict
from itertools import count
from pathlib import Path
from typing import IO

from services.cli.records import StepReport
from services.common.errors import ConfigError, InvalidInputError, StateConflictError


class RunFolder:
    """`<directory>/<name>` with deployment.json, recipe.json, steps.jsonl, evidence.json, learning_curve.png, logs/.

    Example: RunFolder(Path("runs"), "smoke").open_new("smoke-3f2a") leaves an empty folder; what a run of that name
    left earlier is then in runs/smoke.1, runs/smoke.2, … and never mixed with the new one.
    """

    def __init__(self, directory: Path, name: str) -> None:
        self.path = (directory / name).absolute()
        self._name = name
        self._lock: IO[str] | None = None

    @property
    def deployment_path(self) -> Path:
        """Where everything of the run is; read by every service."""
        return self.path / "deployment.json"

    @property
    def recipe_path(self) -> Path:
        """The resolved recipe, without addresses and secrets."""
        return self.path / "recipe.json"

    @property
    def steps_path(self) -> Path:
        """One StepReport a line."""
        return self.path / "steps.jsonl"

    @property
    def evidence_path(self) -> Path:
        """The evidence; there once the run is complete."""
        return self.path / "evidence.json"

    @property
    def baseline_path(self) -> Path:
        """The evaluation before the first step."""
        return self.path / "baseline.json"

    @property
    def curve_path(self) -> Path:
        """The learning curve."""
        return self.path / "learning_curve.png"

    def lock(self) -> None:
        """Takes the run for this process, until the process ends.

        Raises:
            StateConflictError: another process has it.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True)
        lock = (self.path.parent / f".{self._name}.lock").open("a+")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            lock.seek(0)
            holder = lock.read().strip()
            lock.close()
            raise StateConflictError(
                f"run {self._name!r} is in use by process {holder}; wait until it ends or give another --name"
            ) from error
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
        self._lock = lock

    def unlock(self) -> None:
        """Gives the run free."""
        if self._lock:
            self._lock.close()
            self._lock = None

    def open_new(self) -> Path | None:
        """Makes the folder empty; returns where the records of an earlier run went, if there were any."""
        moved = self._free_name() if self.path.exists() else None
        if moved:
            self.path.rename(moved)
        self.path.mkdir(parents=True)
        return moved

    def require_resumable(self) -> None:
        """Returns when the folder holds a run that was started.

        Raises:
            ConfigError: it does not.
        """
        if not (self.deployment_path.exists() and self.recipe_path.exists()):
            raise ConfigError(
                f"--resume: {self.path} holds no run; leave --resume out to start one, or give the --name of a run"
            )

    def keep_steps_below(self, first_step: int) -> list[StepReport]:
        """The saved reports of the steps behind the checkpoint; later ones are removed, they will be redone."""
        kept = [report for report in self.read_steps() if report.step < first_step]
        partial = self.steps_path.with_suffix(".partial")
        partial.write_text("".join(_line(report) for report in kept))
        partial.replace(self.steps_path)
        return kept

    def read_steps(self) -> list[StepReport]:
        """The saved reports; a last line that a crash cut off is left out.

        Raises:
            InvalidInputError: another line is no report.
        """
        if not self.steps_path.exists():
            return []
        lines = self.steps_path.read_text().splitlines(keepends=True)
        reports = []
        for number, line in enumerate(lines, start=1):
            if not line.endswith("\n"):
                break
            try:
                reports.append(StepReport(**json.loads(line)))
            except (ValueError, TypeError) as error:
                raise InvalidInputError(
                    f"{self.steps_path}:{number}: is no step report ({error}); remove the line or start a new run"
                ) from error
        return reports

    def append_step(self, report: StepReport) -> None:
        """Adds a report."""
        with self.steps_path.open("a") as file:
            file.write(_line(report))

    def _free_name(self) -> Path:
        names = (self.path.with_name(f"{self._name}.{number}") for number in count(1))
        return next(path for path in names if not path.exists())


def _line(report: StepReport) -> str:
    return json.dumps(asdict(report)) + "\n"
