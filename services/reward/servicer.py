"""RewardService over a worker pool."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import grpc
from furlong.reward.v1 import reward_pb2, reward_pb2_grpc

from services.common.errors import FurlongError, OverloadedError
from services.common.server import ServedService
from services.reward.conversions import (
    GraderNames,
    item_from_proto,
    items_from_proto,
    score_to_proto,
    scores_to_proto,
)
from services.reward.metrics import RewardMetrics
from services.reward.pending import PendingStream
from services.reward.worker_pool import WorkerPool

# Bounds a call without a deadline, whose remaining time gRPC reports as centuries.
_LONGEST_CALL_SECONDS = 3600.0
# Keeps many workers busy, and lets other calls in between.
_STREAM_ITEMS_IN_HAND = 256
_RETRY_SECONDS = 1.0


class RewardServicer(reward_pb2_grpc.RewardServiceServicer):
    """Scores batches and streams; a call that ends early frees its workers and what it had queued."""

    def __init__(
        self,
        pool: WorkerPool,
        *,
        default_grader: str,
        external_graders: Sequence[str],
        max_batch_items: int,
        max_calls: int,
        metrics: RewardMetrics,
    ) -> None:
        """Serves the pool.

        Args:
            external_graders: the remote and custom graders that requests may name.
            max_calls: most calls at once; more are refused with a hint when to try again.
        """
        self._pool = pool
        self._names = GraderNames(default=default_grader, external=tuple(external_graders))
        self._max_batch_items = max_batch_items
        self._max_calls = max_calls
        self._metrics = metrics
        self._free_calls = threading.Semaphore(max_calls)

    def ScoreBatch(
        self, request: reward_pb2.ScoreBatchRequest, context: grpc.ServicerContext
    ) -> reward_pb2.ScoreBatchResponse:
        """See reward.proto."""
        items = items_from_proto(request, names=self._names, max_batch_items=self._max_batch_items)
        with self._admitted():
            batch = self._pool.submit(items)
            if not context.add_callback(batch.cancel):
                batch.cancel()
            return scores_to_proto(items, batch.wait(timeout_seconds=_remaining_seconds(context)))

    def ScoreStream(
        self, request_iterator: Iterator[reward_pb2.ScoreStreamRequest], context: grpc.ServicerContext
    ) -> Iterator[reward_pb2.ScoreStreamResponse]:
        """See reward.proto."""
        with self._admitted():
            stream = PendingStream(max_in_hand=_STREAM_ITEMS_IN_HAND)
            if not context.add_callback(stream.cancel):
                stream.cancel()
            sample_ids: dict[int, str] = {}
            reader = threading.Thread(
                target=self._read_items, args=(request_iterator, stream, sample_ids), name="score-stream", daemon=True
            )
            reader.start()
            for scored in stream.results(timeout_seconds=_remaining_seconds(context)):
                message = score_to_proto(sample_ids.pop(scored.index), scored.score)
                yield reward_pb2.ScoreStreamResponse(index=scored.index, score=message)

    def _read_items(
        self,
        requests: Iterator[reward_pb2.ScoreStreamRequest],
        stream: PendingStream,
        sample_ids: dict[int, str],
    ) -> None:
        try:
            for request in requests:
                item = item_from_proto(request.item, batch_grader="", names=self._names)
                index = stream.admit()
                if index is None:
                    return
                sample_ids[index] = item.sample_id
                self._pool.submit_to(stream, index=index, item=item)
            stream.end()
        except FurlongError as error:
            stream.fail(error)
        except grpc.RpcError:
            # How gRPC tells the reader of a stream that its call is over.
            stream.cancel()

    @contextmanager
    def _admitted(self) -> Iterator[None]:
        if not self._free_calls.acquire(blocking=False):
            raise OverloadedError(
                f"{self._max_calls} calls wait for scores already; try again later, use larger batches, or raise "
                "reward.max_calls",
                retry_after_seconds=_RETRY_SECONDS,
            )
        self._metrics.running_calls.inc()
        try:
            yield
        finally:
            self._metrics.running_calls.dec()
            self._free_calls.release()


def reward_service(servicer: RewardServicer) -> ServedService:
    """The servicer as a part of a server."""
    return ServedService(
        full_name=reward_pb2.DESCRIPTOR.services_by_name["RewardService"].full_name,
        add_to=lambda server: reward_pb2_grpc.add_RewardServiceServicer_to_server(servicer, server),
    )


def _remaining_seconds(context: grpc.ServicerContext) -> float:
    return min(context.time_remaining() or _LONGEST_CALL_SECONDS, _LONGEST_CALL_SECONDS)
