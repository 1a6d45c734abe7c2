"""Who waits for scores of the pool: a batch, whose scores come together, and a stream, whose scores come singly."""

import threading
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from services.common.errors import AbortedError, DeadlineError, FurlongError
from services.common.records import Score


class ScoreReceiver(Protocol):
    """Who waits for scores. Each index is put once, from any thread, in any order."""

    @property
    def is_cancelled(self) -> bool:
        """Nobody waits for the rest."""
        ...

    def cancel(self) -> None:
        """Gives the rest up."""
        ...

    def put(self, index: int, score: Score) -> None:
        """Delivers the score of one item."""
        ...


class PendingBatch:
    """A ScoreReceiver for a known number of items."""

    def __init__(self, num_items: int) -> None:
        self._scores: list[Score | None] = [None] * num_items
        self._num_missing = num_items
        self._is_cancelled = False
        self._changed = threading.Condition()

    @property
    def is_cancelled(self) -> bool:
        """See ScoreReceiver."""
        return self._is_cancelled

    def cancel(self) -> None:
        """See ScoreReceiver. Has no effect on a finished batch."""
        with self._changed:
            self._is_cancelled = True
            self._changed.notify_all()

    def put(self, index: int, score: Score) -> None:
        """See ScoreReceiver."""
        with self._changed:
            assert self._scores[index] is None
            self._scores[index] = score
            self._num_missing -= 1
            if self._num_missing == 0:
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


@dataclass(frozen=True, kw_only=True)
class StreamedScore:
    """The score of one item of a stream."""

    index: int
    """Position of the item in the stream, from 0."""
    score: Score
    """The score."""


class PendingStream:
    """A ScoreReceiver for items that keep coming.

    At most max_in_hand items are between `admit` and `results`, so neither a fast sender nor a slow reader fills the
    memory. One thread admits and ends, another one reads the results.
    """

    def __init__(self, *, max_in_hand: int) -> None:
        self._max_in_hand = max_in_hand
        self._num_admitted = 0
        self._num_yielded = 0
        self._is_ended = False
        self._is_cancelled = False
        self._failure: FurlongError | None = None
        self._ready: deque[StreamedScore] = deque()
        self._changed = threading.Condition()

    @property
    def is_cancelled(self) -> bool:
        """See ScoreReceiver."""
        return self._is_cancelled

    def cancel(self) -> None:
        """See ScoreReceiver."""
        with self._changed:
            self._is_cancelled = True
            self._changed.notify_all()

    def put(self, index: int, score: Score) -> None:
        """See ScoreReceiver."""
        with self._changed:
            self._ready.append(StreamedScore(index=index, score=score))
            self._changed.notify_all()

    def admit(self) -> int | None:
        """The index of the next item, once there is room for it; None when the stream was cancelled."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._is_cancelled or self._num_admitted - self._num_yielded < self._max_in_hand
            )
            if self._is_cancelled:
                return None
            self._num_admitted += 1
            return self._num_admitted - 1

    def end(self) -> None:
        """No further item comes."""
        with self._changed:
            self._is_ended = True
            self._changed.notify_all()

    def fail(self, error: FurlongError) -> None:
        """Gives the rest up; `results` raises the error."""
        with self._changed:
            self._failure = self._failure or error
        self.cancel()

    def results(self, *, timeout_seconds: float) -> Iterator[StreamedScore]:
        """Every score as soon as it is there, until all items of the ended stream have theirs.

        Raises:
            DeadlineError: the last was not in time; the rest is given up.
            AbortedError: the stream was cancelled.
            FurlongError: what `fail` was told.
        """
        deadline = time.monotonic() + timeout_seconds
        while (scored := self._next(deadline)) is not None:
            yield scored

    def _next(self, deadline: float) -> StreamedScore | None:
        with self._changed:
            is_in_time = self._changed.wait_for(
                lambda: self._ready or self._is_cancelled or self._is_done, deadline - time.monotonic()
            )
            if self._failure:
                raise self._failure
            missing = f"{self._num_admitted - self._num_yielded} of {self._num_admitted} items had no score yet"
            if self._is_cancelled:
                raise AbortedError(f"the stream was cancelled while {missing}")
            if not is_in_time:
                self._is_cancelled = True
                self._changed.notify_all()
                raise DeadlineError(f"the stream's time is over, and {missing}; allow more time or send fewer items")
            if not self._ready:
                return None
            self._num_yielded += 1
            self._changed.notify_all()
            return self._ready.popleft()

    @property
    def _is_done(self) -> bool:
        return self._is_ended and self._num_yielded == self._num_admitted
