"""The bridge between gRPC's threads and the event loop that owns the engine."""

import asyncio
from collections.abc import Coroutine, Sequence
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import TypeVar

from services.common.errors import DeadlineError
from services.common.records import PolicyVersion
from services.rollout.engine import Engine
from services.weights.transfer import StagedRank

Result = TypeVar("Result")


def run_on_loop(
    loop: asyncio.AbstractEventLoop, work: Coroutine[None, None, Result], *, timeout_seconds: float, what: str
) -> Result:
    """The result of a coroutine run on the engine's loop, waited for by another thread.

    Raises:
        DeadlineError: it did not end in time; it is cancelled.
    """
    future = asyncio.run_coroutine_threadsafe(work, loop)
    try:
        return future.result(timeout_seconds)
    except FutureTimeoutError as error:
        future.cancel()
        raise DeadlineError(
            f"{what} did not end within {timeout_seconds:.0f} s; call with a longer deadline"
        ) from error


class LoopCommitter:
    """Commits staged versions on the engine's loop, for the receiver's threads."""

    def __init__(self, engine: Engine, loop: asyncio.AbstractEventLoop, *, timeout_seconds: float) -> None:
        self._engine = engine
        self._loop = loop
        self._timeout_seconds = timeout_seconds

    def commit(self, version: PolicyVersion, staged: Sequence[StagedRank]) -> tuple[float, bool]:
        """Pause seconds, and whether the live parameters have the trainer's digests.

        Raises:
            TransferError: a rank refused.
            DeadlineError: the commit did not end in time.
        """
        result = run_on_loop(
            self._loop,
            self._engine.commit(version, staged),
            timeout_seconds=self._timeout_seconds,
            what=f"the commit of version {version}",
        )
        return result.pause_seconds, result.are_digests_equal
