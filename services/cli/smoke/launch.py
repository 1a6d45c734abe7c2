"""Starts the processes of a run and waits until they serve; stops them in order."""

import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from services.cli.clients import RolloutClient, TrainerClient, wait_until_serving
from services.cli.cluster_plan import (
    QUEUE_SERVER,
    ClusterAddresses,
    ProcessSettings,
    plan_queue_server,
    plan_services,
)
from services.cli.placement.placement import Placement
from services.cli.records import TrainerPhase, TrainerStatus
from services.cli.run_folder import RunFolder
from services.cli.smoke.supervision import Supervisor
from services.cli.smoke.view import RunView
from services.common.config.recipe import Recipe
from services.common.deployment import Deployment, read_deployment, write_deployment
from services.common.errors import DeadlineError, FurlongError
from services.common.security import Credentials

_POLL_SECONDS = 0.3
_SMALL_SERVICE_SECONDS = 60.0
# Stopping must fit into ten seconds: services first, then what they wrote to.
_SERVICE_GRACE_SECONDS = 5.0
_QUEUE_GRACE_SECONDS = 2.0


@dataclass(frozen=True, kw_only=True)
class RunIdentity:
    """What makes a run this run, also after it was resumed."""

    run_id: str
    """Unique."""
    incarnation: int
    """How many times it was resumed."""


@dataclass(frozen=True, kw_only=True)
class RunPlan:
    """What is decided before the first process starts."""

    recipe: Recipe
    """The recipe."""
    folder: RunFolder
    """The records."""
    identity: RunIdentity
    """The run."""
    addresses: ClusterAddresses
    """Where services will listen."""
    model_directory: Path
    """The model."""
    cache_directory: Path
    """What other runs may reuse."""
    python: str
    """Interpreter of the services."""
    environment: Mapping[str, str]
    """Base of their environments."""


class Cluster:
    """The placed processes of a run and clients to them. Every wait notices a process that died."""

    def __init__(self, placement: Placement, view: RunView, plan: RunPlan, credentials: Credentials) -> None:
        self.supervisor = Supervisor(placement)
        self._placement = placement
        self._view = view
        self._plan = plan
        self._credentials = credentials
        self._settings = ProcessSettings(python=plan.python, environment=plan.environment)
        services = plan.addresses.services
        self.trainer = TrainerClient(services.trainer, credentials)
        self.rollouts = [
            RolloutClient(address, credentials, name=f"rollout-{replica}")
            for replica, address in enumerate(services.rollout)
        ]

    def start(self) -> Deployment:
        """Starts queue server and services and returns when each answers, engines ready to take weights.

        Raises:
            ServiceDiedError: a process ended.
            DeadlineError: a service did not answer in its time.
        """
        deployment = self._deployment(self._start_queue_server())
        write_deployment(deployment, self._plan.folder.deployment_path)
        specs = plan_services(deployment, deployment_path=self._plan.folder.deployment_path, settings=self._settings)
        # Engines and trainer take a while to start and can do so side by side, but they call the other two at once.
        small = [spec for spec in specs if spec.name.startswith(("reward", "weights"))]
        for spec in small:
            self._placement.start(spec)
        for replica, address in enumerate(deployment.addresses.reward):
            self._wait_serving(f"reward-{replica}", address, _SMALL_SERVICE_SECONDS)
        self._wait_serving("weights", deployment.addresses.weights, _SMALL_SERVICE_SECONDS)
        for spec in specs:
            if spec not in small:
                self._placement.start(spec)
        return deployment

    def wait_for_engines(self) -> None:
        """Returns when all rollout services serve."""
        seconds = self._plan.recipe.rollout.engine.start_timeout_seconds
        for replica, address in enumerate(self._plan.addresses.services.rollout):
            self._wait_serving(f"rollout-{replica}", address, seconds)

    def wait_for_trainer(self, *, on_status: Callable[[TrainerStatus], None]) -> TrainerStatus:
        """The trainer's status once a version is committed on all engines and it waits for a goal.

        Raises:
            FurlongError: it failed, with its reason.
            DeadlineError: nothing answered in the time an engine has to start.
        """
        timeout_seconds = self._plan.recipe.rollout.engine.start_timeout_seconds
        deadline = time.monotonic() + timeout_seconds
        while True:
            status = self.supervisor.run(self.trainer.status)
            if status is None:
                if time.monotonic() > deadline:
                    raise DeadlineError(
                        f"trainer did not answer within {timeout_seconds:.0f} s; see logs/trainer-0.log, "
                        "or raise rollout.engine.start_timeout_seconds"
                    )
            else:
                on_status(status)
                require_trainer_alive(status)
                if status.committed_step is not None and status.phase is TrainerPhase.WAITING:
                    return status
            self.supervisor.pause(_POLL_SECONDS)

    def stop(self) -> None:
        """Ends everything: services first, then the queue server they write to, then by force what is left."""
        self.trainer.close()
        for rollout in self.rollouts:
            rollout.close()
        names = [status.name for status in self._placement.statuses()]
        services = [name for name in names if name != QUEUE_SERVER]
        # The trainer stops before those it calls.
        self._placement.stop(list(reversed(services)), grace_seconds=_SERVICE_GRACE_SECONDS)
        self._placement.stop([QUEUE_SERVER], grace_seconds=_QUEUE_GRACE_SECONDS)
        self._placement.close()

    def _start_queue_server(self) -> str:
        """The URL of the queue's server: the recipe's, or of the embedded one once it answers."""
        recipe, folder = self._plan.recipe, self._plan.folder
        if recipe.redis.url:
            return recipe.redis.url
        url_path = folder.path / "queue_server.url"
        url_path.unlink(missing_ok=True)
        self._view.progress("starting the queue server")
        self._placement.start(
            plan_queue_server(run_directory=folder.path, url_path=url_path, recipe=recipe, settings=self._settings)
        )
        deadline = time.monotonic() + _SMALL_SERVICE_SECONDS
        while not url_path.exists():
            if time.monotonic() > deadline:
                raise DeadlineError(
                    f"{QUEUE_SERVER} did not answer within {_SMALL_SERVICE_SECONDS:.0f} s; "
                    f"see {self._placement.log_path(QUEUE_SERVER)}"
                )
            self.supervisor.pause(_POLL_SECONDS)
        return url_path.read_text()

    def _wait_serving(self, name: str, address: str, timeout_seconds: float) -> None:
        self._view.progress(f"starting {name}")
        self.supervisor.run(
            lambda: wait_until_serving(address, self._credentials, name=name, timeout_seconds=timeout_seconds)
        )

    def _deployment(self, redis_url: str) -> Deployment:
        plan = self._plan
        return Deployment(
            run_id=plan.identity.run_id,
            incarnation=plan.identity.incarnation,
            recipe=plan.recipe,
            addresses=plan.addresses.services,
            metrics_ports=plan.addresses.metrics_ports,
            redis_url=redis_url,
            run_directory=plan.folder.path,
            model_directory=plan.model_directory,
            cache_directory=plan.cache_directory,
            trainer_rendezvous=plan.addresses.trainer_rendezvous,
        )


def require_trainer_alive(status: TrainerStatus) -> None:
    """Returns unless the trainer has given up.

    Raises:
        FurlongError: with the trainer's reason.
    """
    if status.phase is TrainerPhase.FAILED:
        raise FurlongError(f"trainer: {status.last_error or 'ended without a reason; see logs/trainer-0.log'}")


def new_identity(name: str) -> RunIdentity:
    """A run that never was."""
    return RunIdentity(run_id=f"{name}-{secrets.token_hex(4)}", incarnation=0)


def resumed_identity(folder: RunFolder) -> RunIdentity:
    """The run of the folder, one incarnation later.

    Raises:
        ConfigError: its deployment file cannot be read.
    """
    former = read_deployment(folder.deployment_path)
    return RunIdentity(run_id=former.run_id, incarnation=former.incarnation + 1)
