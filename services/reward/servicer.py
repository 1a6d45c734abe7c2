"""RewardService over a worker pool."""

import grpc
from furlong.reward.v1 import reward_pb2, reward_pb2_grpc

from services.common.server import ServedService
from services.reward.conversions import items_from_proto, scores_to_proto
from services.reward.worker_pool import WorkerPool

# Bounds a call without a deadline, whose remaining time gRPC reports as centuries.
_LONGEST_CALL_SECONDS = 3600.0


class RewardServicer(reward_pb2_grpc.RewardServiceServicer):
    """Scores batches; a call that ends early frees what it had queued."""

    def __init__(self, pool: WorkerPool, *, default_grader: str, max_batch_items: int) -> None:
        self._pool = pool
        self._default_grader = default_grader
        self._max_batch_items = max_batch_items

    def ScoreBatch(
        self, request: reward_pb2.ScoreBatchRequest, context: grpc.ServicerContext
    ) -> reward_pb2.ScoreBatchResponse:
        """See reward.proto."""
        items = items_from_proto(request, default_grader=self._default_grader, max_batch_items=self._max_batch_items)
        batch = self._pool.submit(items)
        if not context.add_callback(batch.cancel):
            batch.cancel()
        remaining_seconds = min(context.time_remaining() or _LONGEST_CALL_SECONDS, _LONGEST_CALL_SECONDS)
        return scores_to_proto(items, batch.wait(timeout_seconds=remaining_seconds))


def reward_service(servicer: RewardServicer) -> ServedService:
    """The servicer as a part of a server."""
    return ServedService(
        full_name=reward_pb2.DESCRIPTOR.services_by_name["RewardService"].full_name,
        add_to=lambda server: reward_pb2_grpc.add_RewardServiceServicer_to_server(servicer, server),
    )
