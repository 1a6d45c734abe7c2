"""Waits for work while watching the services: one that dies ends the wait within a second."""

import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Generic, TypeVar

from services.cli.log_lines import readable_lines
from services.cli.placement.placement import Placement, ServiceDiedError
from services.common.errors import FurlongError

Result = TypeVar("Result")
_NUM_LOG_LINES = 30
_POLL_SECONDS = 0.2
# A peer's connection breaks a moment before the system reports its process as ended.
_DEATH_NOTICE_SECONDS = 1.0


class Supervisor:
    """Runs blocking calls on threads of their own; the caller's thread stays free to notice deaths and Ctrl-C."""

    def __init__(self, placement: Placement) -> None:
        self._placement = placement

    def check(self) -> None:
        """Returns when all placed processes run.

        Raises:
            ServiceDiedError: one ended; it carries the last lines of its log.
        """
        dead = [status for status in self._placement.statuses() if status.exit_code is not None]
        if not dead:
            return
        # Of several in one look, one that ended with an error pulled the others down.
        status = next((s for s in dead if s.exit_code != 0), dead[0])
        lines = self._placement.last_log_lines(status.name, num_lines=_NUM_LOG_LINES)
        raise ServiceDiedError(
            status,
            log_path=self._placement.log_path(status.name),
            log_lines=readable_lines(lines)[-_NUM_LOG_LINES:],
        )

    def run(self, work: Callable[[], Result]) -> Result:
        """The result of the work.

        Raises:
            ServiceDiedError: a process ended meanwhile.
        """
        return next(self.stream(_calling(work)))

    def pause(self, seconds: float) -> None:
        """Waits.

        Raises:
            ServiceDiedError: a process ended meanwhile.
        """
        deadline = time.monotonic() + seconds
        while True:
            self.check()
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                return
            time.sleep(min(_POLL_SECONDS, remaining))

    def stream(
        self,
        items: Iterable[Result],
        *,
        every_seconds: float = float("inf"),
        do: Callable[[], None] = lambda: None,
    ) -> Iterator[Result]:
        """The items, each as it comes; between them `do` is called every so many seconds.

        Raises:
            ServiceDiedError: a process ended meanwhile.
        """
        feed = _Feed(items)
        next_time = time.monotonic() + every_seconds
        while True:
            self.check()
            if time.monotonic() >= next_time:
                do()
                next_time = time.monotonic() + every_seconds
            try:
                item = feed.next(timeout_seconds=_POLL_SECONDS)
            except queue.Empty:
                continue
            except StopIteration:
                return
            except FurlongError:
                self.pause(_DEATH_NOTICE_SECONDS)
                raise
            yield item


class _Feed(Generic[Result]):
    """Takes items on a daemon thread, so that a call that never returns does not keep the process alive."""

    def __init__(self, items: Iterable[Result]) -> None:
        self._items: queue.Queue[tuple[Result] | BaseException] = queue.Queue()
        threading.Thread(target=self._take, args=(items,), name="feed", daemon=True).start()

    def next(self, *, timeout_seconds: float) -> Result:
        entry = self._items.get(timeout=timeout_seconds)
        if isinstance(entry, BaseException):
            raise entry
        return entry[0]

    def _take(self, items: Iterable[Result]) -> None:
        try:
            for item in items:
                self._items.put((item,))
            self._items.put(StopIteration())
        except BaseException as error:  # handed to the waiting thread, which raises it
            self._items.put(error)


def _calling(work: Callable[[], Result]) -> Iterator[Result]:
    yield work()
