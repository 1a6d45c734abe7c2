"""Times a pool on samples in a closed loop: one client per worker, each with one sample on its way."""

import queue
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

from services.reward.bench.mixes import MixSample
from services.reward.scorer import Rule
from services.reward.worker_pool import WorkerPool
from services.reward.worker_process import GradeItem

_LONGEST_SECONDS = 600.0


@dataclass(frozen=True, kw_only=True)
class TimedSample:
    """One sample as its client saw it."""

    seconds: float
    """From asking to having the score, with any wait for a worker."""
    is_poison: bool
    """It was made to stall."""
    is_timeout: bool
    """Its worker was stopped at the limit."""
    is_verdict_right: bool
    """The score says what is so."""


@dataclass(frozen=True, kw_only=True)
class Round:
    """One pass over a mix."""

    seconds: float
    """Duration of the pass."""
    samples: tuple[TimedSample, ...]
    """Every sample, in the order they finished."""


def run_round(pool: WorkerPool, samples: Sequence[MixSample], *, grader: str, num_clients: int) -> Round:
    """All samples graded once."""
    waiting: queue.SimpleQueue[MixSample] = queue.SimpleQueue()
    for sample in samples:
        waiting.put(sample)
    timed: list[TimedSample] = []
    clients = [
        threading.Thread(target=_ask_until_empty, args=(pool, waiting, grader, timed)) for _ in range(num_clients)
    ]
    started = time.monotonic()
    for client in clients:
        client.start()
    for client in clients:
        client.join()
    return Round(seconds=time.monotonic() - started, samples=tuple(timed))


def _ask_until_empty(
    pool: WorkerPool, waiting: "queue.SimpleQueue[MixSample]", grader: str, timed: list[TimedSample]
) -> None:
    while True:
        try:
            sample = waiting.get_nowait()
        except queue.Empty:
            return
        item = GradeItem(sample_id="", grader=grader, prompt="", response=sample.response, label=sample.label)
        started = time.monotonic()
        [score] = pool.submit([item]).wait(timeout_seconds=_LONGEST_SECONDS)
        timed.append(
            TimedSample(
                seconds=time.monotonic() - started,
                is_poison=sample.is_poison,
                is_timeout=score.rule == Rule.TIMEOUT,
                is_verdict_right=(score.value > 0) == sample.is_right,
            )
        )
