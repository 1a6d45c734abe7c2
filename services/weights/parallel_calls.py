"""Calls every engine at once and collects each result or error within a time limit."""

from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import TypeVar

from services.common.errors import DeadlineError, FurlongError

Result = TypeVar("Result")


def call_all(
    calls: Mapping[str, Callable[[], Result]], *, timeout_seconds: float
) -> tuple[dict[str, Result], dict[str, FurlongError]]:
    """The results of the calls that succeeded and the errors of the others, by name.

    A call that has not ended in time is a DeadlineError; its thread is left to end by itself.
    """
    if not calls:
        return {}, {}
    pool = ThreadPoolExecutor(max_workers=len(calls), thread_name_prefix="weights-phase")
    futures = {name: pool.submit(call) for name, call in calls.items()}
    wait(futures.values(), timeout=timeout_seconds)
    pool.shutdown(wait=False)
    results: dict[str, Result] = {}
    errors: dict[str, FurlongError] = {}
    for name, future in futures.items():
        error = _error_of(future, timeout_seconds)
        if error is None:
            results[name] = future.result()
        else:
            errors[name] = error
    return results, errors


def _error_of(future: "Future[Result]", timeout_seconds: float) -> FurlongError | None:
    if not future.done():
        return DeadlineError(f"no answer within {timeout_seconds:.0f} s; see the engine's log")
    error = future.exception()
    if error is None or isinstance(error, FurlongError):
        return error
    raise error
