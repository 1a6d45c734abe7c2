"""Scores an iterable of items as they finish, without a server."""

import threading
from collections.abc import Iterable, Iterator

from services.common.errors import FurlongError
from services.reward.pending import PendingStream, StreamedScore
from services.reward.worker_pool import WorkerPool
from services.reward.worker_process import GradeItem

_NO_LIMIT_SECONDS = 1e9


def scores_as_they_finish(pool: WorkerPool, items: Iterable[GradeItem], *, max_in_hand: int) -> Iterator[StreamedScore]:
    """Every item's score once; what is in hand is given up when the iterator is closed.

    Args:
        max_in_hand: most items between the iterable and the caller.
    """
    stream = PendingStream(max_in_hand=max_in_hand)
    feeder = threading.Thread(target=_feed, args=(pool, stream, items), name="item-feed")
    feeder.start()
    try:
        yield from stream.results(timeout_seconds=_NO_LIMIT_SECONDS)
    finally:
        stream.cancel()
        feeder.join()


def _feed(pool: WorkerPool, stream: PendingStream, items: Iterable[GradeItem]) -> None:
    try:
        for item in items:
            index = stream.admit()
            if index is None:
                return
            pool.submit_to(stream, index=index, item=item)
    except FurlongError as error:
        stream.fail(error)
    finally:
        stream.end()
