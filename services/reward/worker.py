"""The worker template: loads the graders once and forks workers, each of which grades one item after the other.

Run as `python -m services.reward.worker FD SETTINGS MEMORY_BYTES`; FD is the control socket (SOCK_SEQPACKET). A message
with a descriptor asks for a worker on that socket and is answered with its process id; a message with a process id asks
to kill that worker, and is answered when it is gone. The template ends, and its workers with it, when the control
socket closes. Workers speak JSON, one message a line. An isolated worker can open neither files nor sockets, so that an
expression that slips into an `eval` somewhere reaches nothing. Linux only.
"""

import ctypes
import gc
import json
import os
import resource
import signal
import socket
import sys
from collections.abc import Mapping
from pathlib import Path

from services.reward.graders import GraderSettings, make_graders
from services.reward.scorer import Grader, judge

READY_MESSAGE = b"ready"
"""The template's first message."""
KILLED_MESSAGE = b"killed"
"""Its answer when a worker is gone."""
CONTROL_MESSAGE_BYTES = 64
"""Bound of a control message."""
_WORKER_DESCRIPTOR = 3
# prctl(2): a signal to the caller when its parent ends.
_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Serves with the graders of the settings on the command line."""
    settings = GraderSettings.from_json(sys.argv[2])
    serve(make_graders(settings), is_isolated=not settings.needs_outside)


def serve(graders: Mapping[str, Grader], *, is_isolated: bool) -> None:
    """Forks workers with the graders until the control socket named on the command line closes."""
    descriptor, _, memory_bytes = sys.argv[-3:]
    # Ctrl-C reaches the whole process group; the pool ends its workers itself.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Workers share the template's memory until they write to it, which a garbage collection would do everywhere.
    gc.collect()
    gc.freeze()
    with socket.socket(fileno=int(descriptor)) as control:
        control.send(READY_MESSAGE)
        _answer_requests(control, _Worker(graders, memory_bytes=int(memory_bytes), is_isolated=is_isolated))


def _answer_requests(control: socket.socket, worker: "_Worker") -> None:
    children: set[int] = set()
    while True:
        message, descriptors, _, _ = socket.recv_fds(control, CONTROL_MESSAGE_BYTES, 1)
        if descriptors:
            process_id = worker.fork(descriptors[0], control)
            children.add(process_id)
            control.send(b"%d" % process_id)
        elif message:
            # A worker of a former template is nobody's child here, and its id may name another process by now.
            if int(message) in children:
                children.remove(int(message))
                os.kill(int(message), signal.SIGKILL)
                os.waitpid(int(message), 0)
            control.send(KILLED_MESSAGE)
        else:
            return


class _Worker:
    """What every worker is: a fork that grades with the graders under its limits."""

    def __init__(self, graders: Mapping[str, Grader], *, memory_bytes: int, is_isolated: bool) -> None:
        self._graders = graders
        self._memory_bytes = memory_bytes
        self._is_isolated = is_isolated

    def fork(self, descriptor: int, control: socket.socket) -> int:
        """The process id of a worker on the descriptor, which moves to the worker; so does no control socket."""
        template_id = os.getpid()
        process_id = os.fork()
        if process_id:
            os.close(descriptor)
            return process_id
        try:
            control.detach()
            _die_with(template_id)
            _keep_only(descriptor)
            _limit_resources(self._memory_bytes)
            if self._is_isolated:
                resource.setrlimit(resource.RLIMIT_NOFILE, (_WORKER_DESCRIPTOR + 1,) * 2)
            self._grade_items()
        finally:
            os._exit(0)

    def _grade_items(self) -> None:
        with socket.socket(fileno=_WORKER_DESCRIPTOR) as connection, connection.makefile("rwb") as stream:
            for line in stream:
                item = json.loads(line)
                judgement = judge(
                    self._graders[item["grader"]],
                    prompt=item["prompt"],
                    response=item["response"],
                    label=item["label"],
                )
                stream.write(json.dumps(vars(judgement)).encode() + b"\n")
                stream.flush()


def _die_with(template_id: int) -> None:
    """Lets the kernel kill this worker when its template ends, also in the middle of C code."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != template_id:
        os._exit(1)


def _keep_only(descriptor: int) -> None:
    """Closes all descriptors but the standard ones and the given one, which becomes _WORKER_DESCRIPTOR."""
    os.dup2(descriptor, _WORKER_DESCRIPTOR)
    os.closerange(_WORKER_DESCRIPTOR + 1, max(64, descriptor + 1))


def _limit_resources(memory_bytes: int) -> None:
    """Bounds the address space to what is in use now plus memory_bytes; a crash leaves no core file."""
    in_use_pages = int(Path("/proc/self/statm").read_text().split()[0])
    bound = in_use_pages * resource.getpagesize() + memory_bytes
    resource.setrlimit(resource.RLIMIT_AS, (bound, bound))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


if __name__ == "__main__":
    main()
