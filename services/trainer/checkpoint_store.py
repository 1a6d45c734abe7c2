"""The folder of checkpoints: which step each holds, which is newest, which may go."""

import re
import shutil
from pathlib import Path

_NAME = re.compile(r"step-(\d{8})")


class CheckpointStore:
    """Checkpoints of a run, one folder per step. A folder with its final name is complete."""

    def __init__(self, folder: Path, *, keep: int) -> None:
        self._folder = folder
        self._keep = keep

    def path(self, step: int) -> Path:
        """Where the checkpoint of a step is or will be."""
        return self._folder / f"step-{step:08d}"

    @property
    def reference_path(self) -> Path:
        """Where the policy that the run began with is kept, for runs with a KL term; it is never pruned."""
        return self._folder / "reference"

    def newest_step(self) -> int | None:
        """Steps behind the newest complete checkpoint; None when there is none."""
        return max(self._steps(), default=None)

    def prune(self) -> None:
        """Removes all but the newest checkpoints."""
        for step in sorted(self._steps())[: -self._keep]:
            shutil.rmtree(self.path(step))

    def _steps(self) -> list[int]:
        if not self._folder.is_dir():
            return []
        return [int(match[1]) for entry in self._folder.iterdir() if (match := _NAME.fullmatch(entry.name))]
