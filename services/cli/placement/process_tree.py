"""Finds and ends every process that belongs to a placed one, however deep, and whoever adopted it meanwhile.

A process belongs to a leader when it is in the leader's session, descends from it, or carries the placement's mark in
its environment. The first survives re-parenting, the second `setsid`, the third both.
"""

import os
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import psutil

MARK_VARIABLE = "FURLONG_PLACEMENT"
"""Environment variable that marks every process of a placement: "<placement id>/<process name>"."""
_ENGINE_SEGMENTS = ("sglang_", "sem.mp-", "psm_")
_POLL_SECONDS = 0.05


def belonging_processes(*, leaders: Sequence[int], mark: str) -> list[psutil.Process]:
    """Living processes that belong to one of the leaders, or whose mark is the given one or below it.

    Args:
        leaders: process ids that were made session leaders when they started.
        mark: a placement id, or a placement id and a process name.
    """
    wanted, found = set(leaders), {}
    for process in psutil.process_iter():
        with suppress(psutil.Error, ProcessLookupError):
            if process.status() != psutil.STATUS_ZOMBIE and _belongs(process, wanted, mark):
                found[process.pid] = process
                for child in process.children(recursive=True):
                    found[child.pid] = child
    found.pop(os.getpid(), None)
    return list(found.values())


def end_processes(*, leaders: Sequence[int], mark: str, wait_seconds: float = 3.0) -> int:
    """Kills everything that belongs, again and again until nothing is left; returns how many were killed.

    Shared memory that a killed engine had mapped is removed, since the engine cannot do so any more.
    """
    deadline, killed = time.monotonic() + wait_seconds, set()
    segments: set[Path] = set()
    while processes := belonging_processes(leaders=leaders, mark=mark):
        for process in processes:
            segments |= _engine_segments(process.pid)
            with suppress(psutil.Error):
                process.send_signal(signal.SIGKILL)
                killed.add(process.pid)
        if time.monotonic() > deadline:
            break
        time.sleep(_POLL_SECONDS)
    for segment in segments:
        segment.unlink(missing_ok=True)
    return len(killed)


def _engine_segments(process_id: int) -> set[Path]:
    """Files in shared memory that the process has mapped and whose names are those of SGLang or multiprocessing."""
    try:
        lines = Path(f"/proc/{process_id}/maps").read_text().splitlines()
    except OSError:
        return set()
    paths = {Path(line.split(maxsplit=5)[5]) for line in lines if "/dev/shm/" in line}
    return {path for path in paths if path.name.startswith(_ENGINE_SEGMENTS)}


def _belongs(process: psutil.Process, leaders: set[int], mark: str) -> bool:
    # Not by process id alone: the id of a leader that ended may belong to a stranger by now.
    if os.getsid(process.pid) in leaders:
        return True
    try:
        value = process.environ().get(MARK_VARIABLE, "")
    except (psutil.AccessDenied, OSError):
        return False
    return value == mark or value.startswith(f"{mark}/")
