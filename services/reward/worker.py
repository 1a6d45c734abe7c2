"""The worker process: grades one item after the other until its socket closes.

Run as `python -m services.reward.worker FD SETTINGS LIMIT_SECONDS MEMORY_BYTES`. It imports the graders and the
standard library only, so that a killed worker is replaced at once. Messages are JSON, one a line.
"""

import json
import resource
import signal
import socket
import sys
from collections.abc import Mapping
from pathlib import Path

from services.reward.graders import GraderSettings, make_graders
from services.reward.scorer import Grader, judge

READY_LINE = b'{"ready": true}\n'
"""The worker's first line."""
# The pool kills a worker at its limit. This only ends one whose pool is dead, and so comes later.
_ORPHAN_GRACE_SECONDS = 5.0


def main() -> None:
    """Serves with the graders of the settings on the command line."""
    serve(make_graders(GraderSettings.from_json(sys.argv[2])))


def serve(graders: Mapping[str, Grader]) -> None:
    """Grades with the graders until the socket named on the command line closes."""
    descriptor, _, limit_seconds, memory_bytes = sys.argv[1:]
    # Ctrl-C reaches the whole process group; the pool ends its workers itself.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _limit_memory(int(memory_bytes))
    with socket.socket(fileno=int(descriptor)) as connection, connection.makefile("rwb") as stream:
        stream.write(READY_LINE)
        stream.flush()
        for line in stream:
            item = json.loads(line)
            # The default action of SIGALRM ends the process, also in the middle of C code.
            signal.setitimer(signal.ITIMER_REAL, float(limit_seconds) + _ORPHAN_GRACE_SECONDS)
            judgement = judge(
                graders[item["grader"]], prompt=item["prompt"], response=item["response"], label=item["label"]
            )
            signal.setitimer(signal.ITIMER_REAL, 0)
            stream.write(json.dumps(vars(judgement)).encode() + b"\n")
            stream.flush()


def _limit_memory(memory_bytes: int) -> None:
    """Bounds the address space to what is in use now plus memory_bytes; without /proc, to memory_bytes in all."""
    in_use_pages = 0
    status = Path("/proc/self/statm")
    if status.exists():
        in_use_pages = int(status.read_text().split()[0])
    bound = in_use_pages * resource.getpagesize() + memory_bytes
    resource.setrlimit(resource.RLIMIT_AS, (bound, bound))


if __name__ == "__main__":
    main()
