"""Runs the reward service until it is told to stop: python -m services.reward.main --deployment FILE."""

import sys
from collections.abc import Sequence

from services.common.config.rollout import RewardConfig
from services.common.errors import ConfigError, FurlongError
from services.common.server import Server
from services.common.service_process import ServiceProcess, open_service_process, stop_on_signals
from services.reward.graders import GraderNameError, GraderSettings, require_allowed
from services.reward.metrics import RewardMetrics
from services.reward.servicer import RewardServicer, reward_service
from services.reward.worker_pool import WorkerPool
from services.reward.worker_process import WorkerLimits
from services.reward.zero_score_watch import ZeroScoreWatch

# Enough for several full batches to wait, few enough that the last of them is still graded in time.
_PENDING_BATCHES = 4
# For health checks and reflection while all calls wait for scores.
_SPARE_THREADS = 16
# Less than placement gives before it ends a process by force.
_DRAIN_SECONDS = 4.0


def main(argv: Sequence[str] | None = None) -> int:
    """Serves; 0 after an orderly end, 1 with one line on standard error when it cannot start."""
    stop = stop_on_signals()
    try:
        process = open_service_process("reward", argv)
        metrics = RewardMetrics(process.registry)
        pool = make_pool(process.deployment.recipe.reward, metrics)
    except FurlongError as error:
        return _cannot_start(error)
    try:
        server = _open_server(process, pool, metrics)
        server.set_serving()
        stop.wait()
        server.stop(grace_seconds=_DRAIN_SECONDS)
    except FurlongError as error:
        return _cannot_start(error)
    finally:
        pool.close()
    return 0


def make_pool(config: RewardConfig, metrics: RewardMetrics) -> WorkerPool:
    """The pool of a recipe, ready to grade.

    Raises:
        ConfigError: there is no such grader.
        UnavailableError: a worker cannot start.
    """
    return WorkerPool(
        num_workers=config.workers,
        settings=_settings(config),
        limits=WorkerLimits(limit_seconds=config.limit_seconds, memory_bytes=config.memory_limit_mb * 1024 * 1024),
        max_pending_items=_PENDING_BATCHES * config.max_batch_items,
        metrics=metrics,
        zero_watch=ZeroScoreWatch(metrics, window_samples=config.zero_window_samples),
    )


def _settings(config: RewardConfig) -> GraderSettings:
    try:
        require_allowed(config.grader, config.external_graders)
    except GraderNameError as error:
        raise ConfigError(f"reward.grader: {error}") from error
    return GraderSettings(
        require_single_box=config.require_single_box,
        require_think_end=config.require_think_end,
        external_graders=config.external_graders,
        remote_timeout_seconds=config.remote_timeout_seconds,
        remote_retries=config.remote_retries,
    )


def _open_server(process: ServiceProcess, pool: WorkerPool, metrics: RewardMetrics) -> Server:
    deployment = process.deployment
    config, address = deployment.recipe.reward, deployment.addresses.reward[process.index]
    servicer = RewardServicer(
        pool,
        default_grader=config.grader,
        external_graders=config.external_graders,
        max_batch_items=config.max_batch_items,
        max_calls=config.max_calls,
        metrics=metrics,
    )
    server = Server(
        [reward_service(servicer)],
        address=address,
        credentials=process.credentials,
        metrics=process.call_metrics,
        num_threads=config.max_calls + _SPARE_THREADS,
    )
    process.serve_metrics(address, deployment.metrics_ports.reward[process.index])
    return server


def _cannot_start(error: FurlongError) -> int:
    print(f"reward: {error}", file=sys.stderr)  # noqa: T201  # the one line a person reads
    return 1


if __name__ == "__main__":
    sys.exit(main())
