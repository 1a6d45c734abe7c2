"""What the main of every service shares: arguments, logs, secrets, metrics, and an orderly end."""

import argparse
import logging
import signal
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from prometheus_client import CollectorRegistry

from services.common.deployment import Deployment, read_deployment
from services.common.logging_setup import configure_logging
from services.common.security import Credentials, load_credentials
from services.common.telemetry import CallMetrics, serve_metrics

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class ServiceProcess:
    """One process of a service."""

    name: str
    """reward, weights, rollout or trainer."""
    index: int
    """Replica of a reward or rollout service, or rank of a trainer; 0 elsewhere."""
    deployment: Deployment
    """Where everything is."""
    credentials: Credentials
    """The secrets of the process."""
    registry: CollectorRegistry
    """Its metrics."""
    call_metrics: CallMetrics
    """Metrics of its gRPC calls."""

    def serve_metrics(self, address: str, port: int) -> None:
        """Serves the registry on the host of a host:port address."""
        serve_metrics(self.registry, host=address.rpartition(":")[0], port=port)


def open_service_process(name: str, argv: Sequence[str] | None = None) -> ServiceProcess:
    """Parses `--deployment FILE [--index N]`, sets up logs, reads deployment and secrets.

    Raises:
        ConfigError: the deployment or a secret cannot be read.
    """
    parser = argparse.ArgumentParser(prog=f"python -m services.{name}.main", description=f"The {name} service.")
    parser.add_argument("--deployment", type=Path, required=True, help="deployment file that furlong wrote")
    parser.add_argument("--index", type=int, default=0, help="replica or rank of this process (default 0)")
    arguments = parser.parse_args(argv)
    configure_logging(name)
    deployment = read_deployment(arguments.deployment)
    registry = CollectorRegistry()
    return ServiceProcess(
        name=name,
        index=arguments.index,
        deployment=deployment,
        credentials=load_credentials(deployment.recipe.security),
        registry=registry,
        call_metrics=CallMetrics(name, registry),
    )


def stop_on_signals() -> threading.Event:
    """An event that SIGTERM or SIGINT sets. Call it on the main thread."""
    stop = threading.Event()

    def set_stop(number: int, frame: object) -> None:
        stop.set()

    signal.signal(signal.SIGTERM, set_stop)
    signal.signal(signal.SIGINT, set_stop)
    return stop
