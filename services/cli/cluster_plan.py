"""From a recipe to the processes of a run: their addresses, command lines and start order. Pure."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from services.cli.placement.placement import ProcessSpec
from services.common.config.recipe import Recipe
from services.common.config.run import EndpointConfig
from services.common.deployment import Addresses, Deployment, MetricsPorts

QUEUE_SERVER = "valkey"
"""Name of the embedded queue server's process."""
ChoosePort = Callable[[str, int, str], int]
"""(host, configured port or 0, recipe key) -> the port."""


@dataclass(frozen=True, kw_only=True)
class ClusterAddresses:
    """Every address of a run."""

    services: Addresses
    """gRPC servers."""
    metrics_ports: MetricsPorts
    """Prometheus ports."""
    trainer_rendezvous: str
    """Where trainer ranks meet."""


@dataclass(frozen=True, kw_only=True)
class ProcessSettings:
    """What all processes of a run share."""

    python: str
    """Interpreter."""
    environment: Mapping[str, str]
    """Base of every environment."""


def plan_addresses(recipe: Recipe, choose_port: ChoosePort) -> ClusterAddresses:
    """Every address of the run; a configured port is kept, 0 is replaced by a free one.

    Raises:
        ConfigError: a configured port is taken; from choose_port.
    """
    rewards = [
        _endpoint("reward", _replica_endpoint(recipe.reward.endpoint, replica), choose_port)
        for replica in range(recipe.reward.replicas)
    ]
    weights = _endpoint("weights", recipe.weights.endpoint, choose_port)
    trainer = _endpoint("trainer", recipe.trainer.endpoint, choose_port)
    rollouts = [
        _endpoint("rollout", _replica_endpoint(recipe.rollout.endpoint, replica), choose_port)
        for replica in range(recipe.rollout.replicas)
    ]
    host = recipe.trainer.endpoint.host
    return ClusterAddresses(
        services=Addresses(
            reward=tuple(a for a, _ in rewards),
            weights=weights[0],
            trainer=trainer[0],
            rollout=tuple(a for a, _ in rollouts),
        ),
        metrics_ports=MetricsPorts(
            reward=tuple(p for _, p in rewards),
            weights=weights[1],
            trainer=trainer[1],
            rollout=tuple(p for _, p in rollouts),
        ),
        trainer_rendezvous=f"{host}:{choose_port(host, 0, 'trainer rendezvous')}",
    )


def plan_queue_server(*, run_directory: Path, url_path: Path, recipe: Recipe, settings: ProcessSettings) -> ProcessSpec:
    """The embedded queue server's process; it writes its URL to url_path when it answers."""
    folder = str(run_directory / QUEUE_SERVER)
    command = (settings.python, "-m", "services.cli.queue_server", folder, str(url_path))
    return _spec(QUEUE_SERVER, command, run_directory, recipe, settings)


def plan_services(deployment: Deployment, *, deployment_path: Path, settings: ProcessSettings) -> list[ProcessSpec]:
    """The processes of the services in start order: reward replicas, weights, rollout replicas, trainer ranks.

    Replica i of a service and trainer rank r run with `--index i` and `--index r`.
    """
    recipe = deployment.recipe
    commands: dict[str, tuple[str, ...]] = {}
    for replica in range(recipe.reward.replicas):
        commands[f"reward-{replica}"] = ("services.reward.main", "--index", str(replica))
    commands["weights"] = ("services.weights.main",)
    for replica in range(recipe.rollout.replicas):
        commands[f"rollout-{replica}"] = ("services.rollout.main", "--index", str(replica))
    for rank in range(recipe.trainer.ranks):
        commands[f"trainer-{rank}"] = ("services.trainer.main", "--index", str(rank))
    specs = []
    for name, (module, *arguments) in commands.items():
        command = (settings.python, "-m", module, "--deployment", str(deployment_path), *arguments)
        specs.append(_spec(name, command, deployment.run_directory, recipe, settings))
    return specs


def _endpoint(section: str, endpoint: EndpointConfig, choose_port: ChoosePort) -> tuple[str, int]:
    port = choose_port(endpoint.host, endpoint.port, f"{section}.endpoint.port")
    metrics = choose_port(endpoint.host, endpoint.metrics_port, f"{section}.endpoint.metrics_port")
    return f"{endpoint.host}:{port}", metrics


def _replica_endpoint(endpoint: EndpointConfig, replica: int) -> EndpointConfig:
    """Configured ports count up by two per replica, so that port and metrics port may be neighbours."""
    return endpoint.model_copy(
        update={
            "port": endpoint.port + 2 * replica if endpoint.port else 0,
            "metrics_port": endpoint.metrics_port + 2 * replica if endpoint.metrics_port else 0,
        }
    )


def _spec(
    name: str, command: tuple[str, ...], run_directory: Path, recipe: Recipe, settings: ProcessSettings
) -> ProcessSpec:
    return ProcessSpec(
        name=name,
        command=command,
        environment={**settings.environment, **_environment(recipe)},
        log_path=run_directory / "logs" / f"{name}.log",
        working_directory=run_directory,
    )


def _environment(recipe: Recipe) -> dict[str, str]:
    """What every process needs: no look-ups on the network, unbuffered logs, an environment that stays readable
    (SPT_NOENV: the title of a process must not overwrite the mark that placement finds it by)."""
    environment = {"HF_HUB_OFFLINE": "1", "PYTHONUNBUFFERED": "1", "SPT_NOENV": "1"}
    if recipe.trainer.device == "cpu":
        # Trainer and engine share the cores: more threads than one each wait for each other.
        environment["OMP_NUM_THREADS"] = "1"
    return environment
