"""Starts the generation loop once, from any thread, and remembers what ended it."""

import asyncio
import logging
from collections.abc import Callable

from services.rollout.generation import GenerationLoop

logger = logging.getLogger(__name__)


class GenerationControl:
    """The switch of the generation loop."""

    def __init__(
        self, generation: GenerationLoop, loop: asyncio.AbstractEventLoop, *, on_failure: Callable[[], None]
    ) -> None:
        self._generation = generation
        self._loop = loop
        self._on_failure = on_failure
        self._task: asyncio.Task[None] | None = None
        self.last_error = ""

    @property
    def is_generating(self) -> bool:
        """Whether the loop runs."""
        return self._task is not None and not self._task.done()

    def start(self) -> bool:
        """Starts the loop; True when it ran already. Callable from any thread but the loop's own."""
        return asyncio.run_coroutine_threadsafe(self._start(), self._loop).result()

    async def stop(self) -> None:
        """Cancels the loop; its leases go back."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _start(self) -> bool:
        if self.is_generating:
            return True
        self._task = asyncio.create_task(self._generation.run())
        self._task.add_done_callback(self._remember_end)
        return False

    def _remember_end(self, task: asyncio.Task[None]) -> None:
        if task.cancelled():
            return
        error = task.exception()
        assert error is not None, "the loop ends by cancellation or by an error only"
        self.last_error = f"{type(error).__name__}: {error}"
        logger.error("generation ended", exc_info=error)
        self._on_failure()
