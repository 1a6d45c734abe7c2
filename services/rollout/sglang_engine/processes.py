"""SGLang's processes: how they start, how their death is noticed, and how they end."""

import asyncio
import atexit
import logging
import signal
import tempfile
import threading
import time
from collections.abc import Coroutine, Mapping
from pathlib import Path
from types import FrameType
from typing import TypeVar, cast

import psutil
from sglang.srt.entrypoints.engine import Engine
from sglang.srt.managers.load_snapshot import shm_path_for
from sglang.srt.managers.tokenizer_manager import TokenizerManager

from services.common.errors import StateConflictError, UnavailableError
from services.rollout.sglang_arguments import ArgumentValue

logger = logging.getLogger(__name__)

Result = TypeVar("Result")

# A killed process that the kernel has not ended by then is not waited for any longer.
KILL_SECONDS = 3.0


def launch_processes(
    arguments: Mapping[str, ArgumentValue], *, folder: Path, start_timeout_seconds: float
) -> "SglangProcesses":
    """Running processes bound to the running event loop. Blocks that loop until they are ready.

    After a failed start SGLang cannot be started again in this process.

    Args:
        folder: for SGLang's sockets; a short path, because sockets have at most 107 characters.

    Raises:
        StateConflictError: not called in the main thread, where alone signals can be handled.
        UnavailableError: they did not start, or not in time; none is left.
    """
    if threading.current_thread() is not threading.main_thread():
        raise StateConflictError("SGLang was started in a worker thread; start the engine in the main thread")
    older = {child.pid for child in psutil.Process().children()}
    started = time.monotonic()
    deadline = threading.Timer(start_timeout_seconds, _kill_newer_children, [older])
    deadline.daemon = True
    deadline.start()
    usual_folder, tempfile.tempdir = tempfile.tempdir, str(folder)
    try:
        processes = SglangProcesses(Engine(**arguments, custom_sigquit_handler=_note_failed_child))
    except BaseException as error:
        _kill_newer_children(older)
        if not isinstance(error, Exception):
            raise
        # A library's start can fail in any way; each way ends here.
        is_late = time.monotonic() - started >= start_timeout_seconds
        reason = f"exceeded {start_timeout_seconds:.0f} s" if is_late else f"{type(error).__name__}: {error}"
        remedy = "raise rollout.engine.start_timeout_seconds" if is_late else "see the engine's log above"
        raise UnavailableError(f"start of the SGLang engine: {reason}; {remedy}") from error
    finally:
        deadline.cancel()
        tempfile.tempdir = usual_folder
    processes.bind(asyncio.get_running_loop())
    return processes


class SglangProcesses:
    """The scheduler ranks and the detokenizer of one engine, and SGLang's face to them in this process."""

    def __init__(self, engine: Engine) -> None:
        """Use `launch_processes`."""
        self.manager: TokenizerManager = engine.tokenizer_manager
        self._engine = engine
        self._children = [psutil.Process(pid) for pid in engine.get_all_child_pids()]
        self._loop: asyncio.AbstractEventLoop | None = None
        self._end: asyncio.Future[str] | None = None
        self._is_ended = False

    def bind(self, loop: asyncio.AbstractEventLoop) -> None:
        """Ties SGLang to the loop, with handlers of our own: SGLang's end this process when a child dies."""
        self._loop, self._end = loop, loop.create_future()
        handler_of_sigterm = signal.getsignal(signal.SIGTERM)
        self.manager.signal_handler_class = lambda _: _SignalHandlers(self)
        self.manager.auto_create_handle_loop()
        loop.remove_signal_handler(signal.SIGTERM)
        signal.signal(signal.SIGTERM, handler_of_sigterm or signal.SIG_DFL)

    async def while_alive(self, work: Coroutine[None, None, Result]) -> Result:
        """The result of a call of SGLang's, which by itself would wait for ever for a dead process.

        Raises:
            UnavailableError: the processes have ended.
        """
        assert self._end is not None
        task = asyncio.ensure_future(work)
        try:
            either = (cast("asyncio.Future[object]", task), cast("asyncio.Future[object]", self._end))
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
            raise UnavailableError(f"{self._end.result()}; restart the rollout service")
        finally:
            task.cancel()

    def note_death(self) -> None:
        """Ends the rest after one process has died."""
        dead = [child.pid for child in self._children if not _is_alive(child)]
        logger.error("SGLang process died", extra={"pids": dead})
        self.end(f"SGLang process {', '.join(map(str, dead))} died")

    def end(self, reason: str) -> None:
        """Ends all processes and removes their shared memory. Twice is the same as once."""
        if self._is_ended:
            return
        self._is_ended = True
        self._tell_waiting(reason)
        atexit.unregister(self._engine.shutdown)
        watchdog = self.manager._subprocess_watchdog
        if watchdog is not None:
            watchdog.stop()
        self._engine.send_to_rpc.close(linger=0)
        _kill(self._children)
        Path(shm_path_for(self._engine.port_args.instance_id)).unlink(missing_ok=True)

    def _tell_waiting(self, reason: str) -> None:
        assert self._loop is not None
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._set_end, reason)

    def _set_end(self, reason: str) -> None:
        assert self._end is not None
        if not self._end.done():
            self._end.set_result(reason)


class _SignalHandlers:
    """What SGLang installs on the loop."""

    def __init__(self, processes: SglangProcesses) -> None:
        self._processes = processes

    def sigterm_handler(self) -> None:
        """Never called: SIGTERM belongs to the service."""

    def running_phase_sigquit_handler(self) -> None:
        """SGLang's way to say that a process of it has died."""
        self._processes.note_death()


def _note_failed_child(signum: int, frame: FrameType | None) -> None:
    """Handles SIGQUIT during the start; the failed start itself raises."""
    logger.error("SGLang process died during the start")


def _kill_newer_children(older: set[int]) -> None:
    _kill([child for child in psutil.Process().children() if child.pid not in older and not _is_tracker(child)])


def _kill(processes: list[psutil.Process]) -> None:
    """Kills the processes and their descendants and waits for them."""
    family = list(processes)
    for process in processes:
        if process.is_running():
            family += process.children(recursive=True)
    for member in family:
        if member.is_running():
            member.kill()
    psutil.wait_procs(family, timeout=KILL_SECONDS)


def _is_alive(process: psutil.Process) -> bool:
    return bool(process.is_running()) and process.status() != psutil.STATUS_ZOMBIE


def _is_tracker(process: psutil.Process) -> bool:
    """Whether it is Python's resource tracker, which cleans up after the others."""
    return any("resource_tracker" in word for word in process.cmdline())
