"""The process that forks workers, as the pool holds it: a killed worker is replaced within milliseconds."""

import logging
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence

from services.common.errors import UnavailableError
from services.reward.graders import GraderSettings
from services.reward.worker import CONTROL_MESSAGE_BYTES, READY_MESSAGE
from services.reward.worker_process import WorkerLimits, WorkerProcess

logger = logging.getLogger(__name__)

WORKER_COMMAND = (sys.executable, "-m", "services.reward.worker")
"""Starts the template of the product."""
_START_SECONDS = 60.0
_ANSWER_SECONDS = 10.0


class WorkerTemplate:
    """Starts and kills workers. Safe to use from many threads; a template that dies is started again."""

    def __init__(self, command: Sequence[str], *, settings: GraderSettings, limits: WorkerLimits) -> None:
        """Starts the process and waits until it is ready.

        Args:
            command: the template's command line, to which its socket, settings and memory limit are added.

        Raises:
            UnavailableError: it ended, or was not ready in time.
        """
        self._command, self._settings, self._limits = command, settings, limits
        self._lock = threading.Lock()
        self._start()

    def fork_worker(self) -> WorkerProcess:
        """A worker that is ready to grade.

        Raises:
            UnavailableError: the template is dead and cannot be started again.
        """
        ours, theirs = socket.socketpair()
        with theirs, self._lock:
            try:
                process_id = self._fork(theirs)
            except OSError as error:
                logger.warning("worker template lost; another one is started", extra={"detail": str(error)})
                self._stop()
                self._start()
                try:
                    process_id = self._fork(theirs)
                except OSError as second_error:
                    ours.close()
                    raise UnavailableError(f"the worker template died again: {second_error}") from second_error
        return WorkerProcess(ours, process_id=process_id, limits=self._limits)

    def kill(self, worker: WorkerProcess) -> None:
        """Ends the worker now and frees what it held. Killing twice does nothing."""
        worker.close()
        with self._lock:
            try:
                self._control.send(b"%d" % worker.process_id)
                self._receive()
            except OSError as error:
                # Its workers end with it, and a late answer cannot be taken for the next one's.
                logger.warning("worker template lost, and its workers with it", extra={"detail": str(error)})
                self._stop()

    def close(self) -> None:
        """Ends the template and every worker that is left. Closing twice does nothing."""
        with self._lock:
            self._stop()

    def _start(self) -> None:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        arguments = [str(theirs.fileno()), self._settings.to_json(), str(self._limits.memory_bytes)]
        with theirs:
            self._process = subprocess.Popen(
                [*self._command, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
            )
        self._control.settimeout(_START_SECONDS)
        try:
            is_ready = self._receive() == READY_MESSAGE
        except OSError:
            is_ready = False
        if not is_ready:
            self._stop()
            raise UnavailableError(
                f"the grading workers' template was not ready after {_START_SECONDS:.0f} s (exit code "
                f"{self._process.returncode}); see the lines before this one on standard error"
            )
        self._control.settimeout(_ANSWER_SECONDS)

    def _stop(self) -> None:
        self._control.close()
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()

    def _fork(self, theirs: socket.socket) -> int:
        socket.send_fds(self._control, [b"fork"], [theirs.fileno()])
        return int(self._receive())

    def _receive(self) -> bytes:
        message = self._control.recv(CONTROL_MESSAGE_BYTES)
        if not message:
            raise ConnectionResetError("the process closed its socket")
        return message
