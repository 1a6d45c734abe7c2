"""Reward services in this process, for tests: real gRPC, real workers."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from prometheus_client import CollectorRegistry

from services.common.security import NO_CREDENTIALS, Credentials
from services.common.server import Server
from services.common.telemetry import CallMetrics
from services.reward.graders import GraderSettings
from services.reward.metrics import RewardMetrics
from services.reward.servicer import RewardServicer, reward_service
from services.reward.worker_pool import WorkerPool
from services.reward.worker_process import WorkerLimits
from services.reward.worker_template import WORKER_COMMAND
from services.reward.zero_score_watch import ZeroScoreWatch

MISBEHAVING = (
    sys.executable,
    str(Path(__file__).parents[1] / "unit" / "reward" / "misbehaving_worker.py"),
)
SERVICE = "furlong.reward.v1.RewardService"


@dataclass(frozen=True, kw_only=True)
class RewardServer:
    """One replica."""

    server: Server
    pool: WorkerPool
    registry: CollectorRegistry

    @property
    def address(self) -> str:
        """Its host:port."""
        return f"127.0.0.1:{self.server.port}"


@contextmanager
def reward_server(
    *,
    command: tuple[str, ...] = WORKER_COMMAND,
    num_workers: int = 1,
    max_pending_items: int = 100,
    max_batch_items: int = 8,
    max_calls: int = 30,
    credentials: Credentials = NO_CREDENTIALS,
) -> Iterator[RewardServer]:
    """A replica that serves."""
    registry = CollectorRegistry()
    metrics = RewardMetrics(registry)
    pool = WorkerPool(
        num_workers=num_workers,
        settings=GraderSettings(require_single_box=True),
        limits=WorkerLimits(limit_seconds=1.0, memory_bytes=256 * 1024 * 1024),
        max_pending_items=max_pending_items,
        metrics=metrics,
        zero_watch=ZeroScoreWatch(metrics, window_samples=1000),
        command=command,
    )
    servicer = RewardServicer(
        pool,
        default_grader="boxed",
        external_graders=(),
        max_batch_items=max_batch_items,
        max_calls=max_calls,
        metrics=metrics,
    )
    server = Server(
        [reward_service(servicer)],
        address="127.0.0.1:0",
        credentials=credentials,
        metrics=CallMetrics("reward", registry),
        num_threads=max_calls + 8,
    )
    server.set_serving()
    try:
        yield RewardServer(server=server, pool=pool, registry=registry)
    finally:
        server.stop(grace_seconds=0)
        pool.close()
