"""Runs the weights service until it is told to stop: python -m services.weights.main --deployment FILE."""

import sys
from collections.abc import Sequence

from services.common.errors import FurlongError
from services.common.redis_connection import open_redis
from services.common.server import Server
from services.common.service_process import ServiceProcess, open_service_process, stop_on_signals
from services.weights.coordinator import Coordinator
from services.weights.metrics import WeightsMetrics
from services.weights.receiver_client import ReceiverClient
from services.weights.servicer import weights_service
from services.weights.version_store import RedisVersionStore

# An engine that gives up at the phase timeout, because a source is slow, still gets to say so.
_ANSWER_SECONDS = 1.0


def main(argv: Sequence[str] | None = None) -> int:
    """Serves; 0 after an orderly end, 1 with one line on standard error when it cannot start."""
    stop = stop_on_signals()
    try:
        process = open_service_process("weights", argv)
        coordinator = make_coordinator(process)
        address = process.deployment.addresses.weights
        server = Server(
            [weights_service(coordinator)],
            address=address,
            credentials=process.credentials,
            metrics=process.call_metrics,
        )
        process.serve_metrics(address, process.deployment.metrics_ports.weights)
    except FurlongError as error:
        print(f"weights: {error}", file=sys.stderr)  # noqa: T201  # the one line a person reads
        return 1
    server.set_serving()
    stop.wait()
    server.stop()
    coordinator.close()
    return 0


def make_coordinator(process: ServiceProcess) -> Coordinator:
    """The coordinator of the deployment's recipe, with its versions in Redis.

    Raises:
        UnavailableError: Redis cannot be reached.
    """
    weights = process.deployment.recipe.weights
    phase_timeout_seconds = weights.phase_timeout_seconds
    call_timeout_seconds = phase_timeout_seconds + _ANSWER_SECONDS
    return Coordinator(
        store=RedisVersionStore(open_redis(process.deployment.redis_url)),
        connect=lambda address: ReceiverClient(address, process.credentials, timeout_seconds=call_timeout_seconds),
        metrics=WeightsMetrics(process.registry),
        bucket_bytes=weights.bucket_mb * 1024 * 1024,
        phase_timeout_seconds=phase_timeout_seconds,
    )


if __name__ == "__main__":
    sys.exit(main())
