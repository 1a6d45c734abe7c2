import threading
import time

import pytest

from services.common.errors import AbortedError, DeadlineError, InvalidInputError
from services.common.records import Score
from services.reward.pending import PendingStream


def score(value):
    return Score(value=value, extracted="", rule="numeric", seconds=0.0, error="")


def test_scores_come_as_they_are_put_until_all_are_there():
    stream = PendingStream(max_in_hand=10)
    assert [stream.admit() for _ in range(3)] == [0, 1, 2]
    stream.put(2, score(2.0))
    stream.put(0, score(0.0))
    stream.end()
    results = stream.results(timeout_seconds=5)
    assert [next(results).index, next(results).index] == [2, 0]
    stream.put(1, score(1.0))
    assert [(scored.index, scored.score.value) for scored in results] == [(1, 1.0)]


def test_stream_without_items_ends():
    stream = PendingStream(max_in_hand=1)
    stream.end()
    assert list(stream.results(timeout_seconds=5)) == []


def test_no_more_items_are_admitted_than_may_be_in_hand():
    stream = PendingStream(max_in_hand=2)
    stream.admit()
    stream.admit()
    admitted = []
    third = threading.Thread(target=lambda: admitted.append(stream.admit()))
    third.start()
    stream.put(0, score(0.0))
    time.sleep(0.05)
    assert admitted == [], "a score that nobody has taken is still in hand"
    next(stream.results(timeout_seconds=5))
    third.join()
    assert admitted == [2]


def test_cancelled_stream_admits_nothing_and_ends_its_reader():
    stream = PendingStream(max_in_hand=1)
    stream.admit()
    waiting = []
    second = threading.Thread(target=lambda: waiting.append(stream.admit()))
    second.start()
    stream.cancel()
    second.join()
    assert waiting == [None]
    with pytest.raises(AbortedError, match="1 of 1 items had no score yet"):
        next(stream.results(timeout_seconds=5))


def test_late_stream_is_given_up():
    stream = PendingStream(max_in_hand=5)
    stream.admit()
    with pytest.raises(DeadlineError, match="1 of 1 items had no score yet"):
        next(stream.results(timeout_seconds=0.05))
    assert stream.is_cancelled


def test_failure_of_the_sender_reaches_the_reader():
    stream = PendingStream(max_in_hand=5)
    stream.fail(InvalidInputError("line 3 is bad"))
    with pytest.raises(InvalidInputError, match="line 3 is bad"):
        next(stream.results(timeout_seconds=5))
