"""Ends everything a placement started when the placement itself is killed.

It runs as a process in a session of its own and reads lines from its standard input: `leader PID` for each process
started, `shared PREFIX` for shared memory to remove, `done` for an orderly end. When the input closes without `done`,
its parent is dead: it kills what belongs to the leaders or carries the mark, and removes the shared memory.
"""

import signal
import sys
from collections.abc import Iterable
from pathlib import Path

from services.cli.placement.process_tree import end_processes

SHARED_MEMORY = Path("/dev/shm")


def watch(lines: Iterable[str], *, mark: str, shared_memory: Path = SHARED_MEMORY) -> int:
    """Reads until the input closes; returns the number of processes it had to kill, 0 after `done`."""
    leaders: list[int] = []
    prefixes: list[str] = []
    for line in lines:
        word, _, value = line.strip().partition(" ")
        if word == "done":
            return 0
        if word == "leader":
            leaders.append(int(value))
        elif word == "shared":
            prefixes.append(value)
    killed = end_processes(leaders=leaders, mark=mark, wait_seconds=10.0)
    for prefix in prefixes:
        remove_shared_memory(prefix, folder=shared_memory)
    return killed


def remove_shared_memory(prefix: str, *, folder: Path = SHARED_MEMORY) -> int:
    """Removes the shared-memory segments whose name begins with the prefix; returns how many there were."""
    segments = [path for path in folder.glob(f"{prefix}*") if path.is_file()] if folder.is_dir() else []
    for segment in segments:
        segment.unlink(missing_ok=True)
    return len(segments)


def main() -> None:
    """Watches standard input on behalf of the mark given as the only argument."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    watch(sys.stdin, mark=sys.argv[1])


if __name__ == "__main__":
    main()
