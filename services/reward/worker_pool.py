"""Grades batches on killable worker processes: a response that hangs a grader costs one worker one time limit."""

import logging
import queue
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

from services.common.errors import AbortedError, DeadlineError, OverloadedError, StateConflictError, UnavailableError
from services.common.records import Score
from services.reward.graders import GraderSettings
from services.reward.metrics import RewardMetrics
from services.reward.scorer import Judgement, Rule
from services.reward.worker_process import WORKER_COMMAND, GradeItem, WorkerLimits, WorkerProcess

logger = logging.getLogger(__name__)

# A worker may die through no fault of its item, so the item is tried once more; one that kills twice is at fault.
_NUM_TRIES = 2


class PendingBatch:
    """A batch on its way through the pool."""

    def __init__(self, num_items: int) -> None:
        self._scores: list[Score | None] = [None] * num_items
        self._num_missing = num_items
        self._is_cancelled = False
        self._changed = threading.Condition()

    @property
    def is_cancelled(self) -> bool:
        """Nobody waits for the rest."""
        return self._is_cancelled

    def cancel(self) -> None:
        """Gives the rest up: items not yet begun are never graded. Has no effect on a finished batch."""
        with self._changed:
            self._is_cancelled = True
            self._changed.notify_all()

    def wait(self, *, timeout_seconds: float) -> list[Score]:
        """The scores in the items' order, once all are there.

        Raises:
            DeadlineError: they were not in time; the rest is given up.
            AbortedError: the batch was cancelled.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._num_missing == 0 or self._is_cancelled, timeout_seconds)
            scores = [score for score in self._scores if score is not None]
            if len(scores) == len(self._scores):
                return scores
            missing = f"{self._num_missing} of {len(self._scores)} items are not graded"
            if self._is_cancelled:
                raise AbortedError(f"the batch was cancelled while {missing}")
            self._is_cancelled = True
        raise DeadlineError(
            f"{missing} after {timeout_seconds:.1f} s; send fewer items, allow more time, or raise reward.workers"
        )

    def put(self, index: int, score: Score) -> None:
        """Delivers the score of one item."""
        with self._changed:
            assert self._scores[index] is None
            self._scores[index] = score
            self._num_missing -= 1
            self._changed.notify_all()


@dataclass(frozen=True, kw_only=True)
class _Job:
    batch: PendingBatch
    index: int
    item: GradeItem


class WorkerPool:
    """A fixed number of workers fed from one bounded queue. Safe to use from many threads."""

    def __init__(
        self,
        *,
        num_workers: int,
        settings: GraderSettings,
        limits: WorkerLimits,
        max_pending_items: int,
        metrics: RewardMetrics,
        command: Sequence[str] = WORKER_COMMAND,
    ) -> None:
        """Returns when every worker is ready.

        Raises:
            UnavailableError: a worker cannot start.
        """
        self._settings, self._limits, self._metrics, self._command = settings, limits, metrics, command
        self._max_pending_items = max_pending_items
        self._num_pending = 0
        self._lock = threading.Lock()
        self._is_closed = False
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._workers: list[WorkerProcess | None] = [None] * num_workers
        try:
            for slot in range(num_workers):
                self._start_worker(slot)
        except UnavailableError:
            self._kill_workers()
            raise
        self._threads = [
            threading.Thread(target=self._run_slot, args=(slot,), name=f"grader-{slot}") for slot in range(num_workers)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def process_ids(self) -> list[int]:
        """Ids of the running workers."""
        with self._lock:
            return [worker.process_id for worker in self._workers if worker]

    def submit(self, items: Sequence[GradeItem]) -> PendingBatch:
        """Queues the items as one batch.

        Raises:
            OverloadedError: there is no room for the whole batch now.
            StateConflictError: the pool is closed.
        """
        batch = PendingBatch(len(items))
        with self._lock:
            if self._is_closed:
                raise StateConflictError("the reward service is stopping; send the batch to another replica")
            if self._num_pending + len(items) > self._max_pending_items:
                raise OverloadedError(
                    f"{self._num_pending} items wait for {len(self._workers)} grading workers, and {len(items)} more "
                    f"exceed {self._max_pending_items}; send them again later, or raise reward.workers",
                    retry_after_seconds=self._limits.limit_seconds,
                )
            self._count_pending(len(items))
            for index, item in enumerate(items):
                self._jobs.put(_Job(batch=batch, index=index, item=item))
        return batch

    def close(self) -> None:
        """Kills every worker, gives up every batch and ends the threads. Closing twice does nothing."""
        with self._lock:
            if not self._is_closed:
                self._is_closed = True
                for _ in self._threads:
                    self._jobs.put(None)
        self._kill_workers()
        for thread in self._threads:
            thread.join()
        self._kill_workers()

    def _run_slot(self, slot: int) -> None:
        while job := self._jobs.get():
            if self._is_closed:
                job.batch.cancel()
            if not job.batch.is_cancelled:
                score = self._grade(slot, job.item)
                self._metrics.observe(grader=job.item.grader, score=score)
                job.batch.put(job.index, score)
            with self._lock:
                self._count_pending(-1)
            self._replace_lost_worker(slot)

    def _grade(self, slot: int, item: GradeItem) -> Score:
        started = time.monotonic()
        judgement = Judgement(value=0.0, rule=Rule.ERROR, error=f"the grading worker died {_NUM_TRIES} times")
        for _ in range(_NUM_TRIES):
            try:
                worker = self._worker_of(slot)
                started = time.monotonic()
                judgement = worker.grade(item)
                break
            except DeadlineError as error:
                self._kill_worker(slot, cause="timeout")
                judgement = Judgement(value=0.0, rule=Rule.TIMEOUT, error=str(error))
                break
            except UnavailableError as error:
                logger.warning("grading worker lost", extra={"sample_id": item.sample_id, "detail": str(error)})
                self._kill_worker(slot, cause="died")
        return Score(
            value=judgement.value,
            extracted=judgement.extracted,
            rule=judgement.rule,
            seconds=time.monotonic() - started,
            error=judgement.error,
        )

    def _replace_lost_worker(self, slot: int) -> None:
        """Starts the next worker now, so that the next item does not wait for it."""
        try:
            if not self._is_closed:
                self._worker_of(slot)
        except UnavailableError as error:
            logger.warning("grading worker not replaced; the next item tries again", extra={"detail": str(error)})

    def _worker_of(self, slot: int) -> WorkerProcess:
        """The slot's worker; a new one in place of one that was killed.

        Raises:
            UnavailableError: it cannot start, or the pool is closed.
        """
        worker = self._workers[slot]
        return worker or self._start_worker(slot)

    def _start_worker(self, slot: int) -> WorkerProcess:
        if self._is_closed:
            raise UnavailableError("the reward service is stopping; send the batch to another replica")
        worker = WorkerProcess(self._command, settings=self._settings, limits=self._limits)
        with self._lock:
            self._workers[slot] = worker
        return worker

    def _kill_worker(self, slot: int, *, cause: str) -> None:
        with self._lock:
            worker, self._workers[slot] = self._workers[slot], None
        if worker:
            worker.kill()
            self._metrics.workers_lost.labels(cause=cause).inc()

    def _kill_workers(self) -> None:
        with self._lock:
            workers, self._workers = self._workers, [None] * len(self._workers)
        for worker in workers:
            if worker:
                worker.kill()

    def _count_pending(self, change: int) -> None:
        self._num_pending += change
        self._metrics.pending_items.set(self._num_pending)
