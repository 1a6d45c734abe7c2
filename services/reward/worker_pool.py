"""Grades items on killable worker processes: a response that hangs a grader costs one worker one time limit."""

import logging
import queue
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

from services.common.errors import AbortedError, DeadlineError, OverloadedError, UnavailableError
from services.common.records import Score
from services.reward.failure_scores import FAILURE_RULES, failure_value
from services.reward.graders import GraderSettings
from services.reward.metrics import RewardMetrics
from services.reward.pending import PendingBatch, ScoreReceiver
from services.reward.scorer import Judgement, Rule
from services.reward.worker_process import GradeItem, WorkerLimits, WorkerProcess
from services.reward.worker_template import WORKER_COMMAND, WorkerTemplate
from services.reward.zero_score_watch import ZeroScoreWatch

logger = logging.getLogger(__name__)

# A worker may die through no fault of its item, so the item is tried once more; one that kills twice is at fault.
_NUM_TRIES = 2
# How often who waits for room looks whether anybody still waits for the score.
_ROOM_LOOK_SECONDS = 0.1


@dataclass(frozen=True, kw_only=True)
class _Job:
    receiver: ScoreReceiver
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
        zero_watch: ZeroScoreWatch,
        command: Sequence[str] = WORKER_COMMAND,
    ) -> None:
        """Returns when every worker is ready.

        Args:
            command: starts the template that forks the workers.

        Raises:
            UnavailableError: a worker cannot start.
        """
        self._limits, self._metrics, self._zero_watch = limits, metrics, zero_watch
        self._max_pending_items = max_pending_items
        self._num_pending = 0
        self._lock = threading.Lock()
        self._room = threading.Condition(self._lock)
        self._is_closed = False
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._workers: list[WorkerProcess | None] = [None] * num_workers
        self._template = WorkerTemplate(command, settings=settings, limits=limits)
        try:
            for slot in range(num_workers):
                self._start_worker(slot)
        except UnavailableError:
            self._template.close()
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
            UnavailableError: the pool is closed.
        """
        batch = PendingBatch(len(items))
        with self._lock:
            self._require_open()
            if self._num_pending + len(items) > self._max_pending_items:
                raise OverloadedError(
                    f"{self._num_pending} items wait for {len(self._workers)} grading workers, and {len(items)} more "
                    f"exceed {self._max_pending_items}; send them again later, or raise reward.workers",
                    retry_after_seconds=self._limits.limit_seconds,
                )
            for index, item in enumerate(items):
                self._put(_Job(receiver=batch, index=index, item=item))
        return batch

    def submit_to(self, receiver: ScoreReceiver, *, index: int, item: GradeItem) -> None:
        """Queues one item as soon as there is room, or never when its receiver is cancelled first.

        Raises:
            UnavailableError: the pool is closed.
        """
        with self._lock:
            while self._num_pending >= self._max_pending_items and not receiver.is_cancelled and not self._is_closed:
                self._room.wait(_ROOM_LOOK_SECONDS)
            self._require_open()
            if not receiver.is_cancelled:
                self._put(_Job(receiver=receiver, index=index, item=item))

    def close(self) -> None:
        """Kills every worker, gives up every item and ends the threads. Closing twice does nothing."""
        with self._lock:
            if not self._is_closed:
                self._is_closed = True
                for _ in self._threads:
                    self._jobs.put(None)
        self._kill_workers()
        for thread in self._threads:
            thread.join()
        self._kill_workers()
        self._template.close()

    def _run_slot(self, slot: int) -> None:
        while job := self._jobs.get():
            if self._is_closed:
                job.receiver.cancel()
            if not job.receiver.is_cancelled:
                self._serve(slot, job)
            with self._lock:
                self._num_pending -= 1
                self._metrics.pending_items.set(self._num_pending)
                self._room.notify()
            self._replace_lost_worker(slot)

    def _serve(self, slot: int, job: _Job) -> None:
        score = self._grade(slot, job)
        if score is None:
            return
        job.receiver.put(job.index, score)
        self._metrics.observe(grader=job.item.grader, score=score)
        self._zero_watch.observe(job.item, score)

    def _grade(self, slot: int, job: _Job) -> Score | None:
        """The score of the job; None when it was cancelled meanwhile."""
        started, failure = time.monotonic(), failure_value(job.item.grader)
        judgement = Judgement(value=failure, rule=Rule.ERROR, error=f"the grading worker died {_NUM_TRIES} times")
        for _ in range(_NUM_TRIES):
            try:
                worker = self._worker_of(slot)
                started = time.monotonic()
                judgement = worker.grade(job.item, is_cancelled=lambda: job.receiver.is_cancelled)
                break
            except DeadlineError as error:
                self._kill_worker(slot, cause="timeout")
                judgement = Judgement(value=failure, rule=Rule.TIMEOUT, error=str(error))
                break
            except AbortedError:
                self._kill_worker(slot, cause="cancelled")
                return None
            except UnavailableError as error:
                logger.warning("grading worker lost", extra={"sample_id": job.item.sample_id, "detail": str(error)})
                self._kill_worker(slot, cause="died")
        return Score(
            value=failure if judgement.rule in FAILURE_RULES else judgement.value,
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
        return self._workers[slot] or self._start_worker(slot)

    def _start_worker(self, slot: int) -> WorkerProcess:
        self._require_open()
        worker = self._template.fork_worker()
        with self._lock:
            self._workers[slot] = worker
        return worker

    def _kill_worker(self, slot: int, *, cause: str) -> None:
        with self._lock:
            worker, self._workers[slot] = self._workers[slot], None
        if worker:
            self._template.kill(worker)
            self._metrics.workers_lost.labels(cause=cause).inc()

    def _kill_workers(self) -> None:
        with self._lock:
            workers, self._workers = self._workers, [None] * len(self._workers)
        for worker in workers:
            if worker:
                self._template.kill(worker)

    def _require_open(self) -> None:
        if self._is_closed:
            raise UnavailableError("the reward service is stopping; send the items to another replica")

    def _put(self, job: _Job) -> None:
        """Queues the job; the lock is held."""
        self._num_pending += 1
        self._metrics.pending_items.set(self._num_pending)
        self._jobs.put(job)
