"""The deployment file: where every process of a run is, written once by placement and read by every service."""

import os
from pathlib import Path

from pydantic import ValidationError

from services.common.config.base import NonNegativeInt, PositiveInt, Section
from services.common.config.recipe import Recipe
from services.common.errors import ConfigError


class Addresses(Section):
    """host:port of every gRPC server."""

    reward: tuple[str, ...]
    """The reward services, by replica."""
    weights: str
    """The weights service."""
    trainer: str
    """The trainer's rank 0."""
    rollout: tuple[str, ...]
    """The rollout services, by replica."""


class MetricsPorts(Section):
    """Prometheus port of every process, on the host of its service."""

    reward: tuple[PositiveInt, ...]
    """The reward services, by replica."""
    weights: PositiveInt
    """The weights service."""
    trainer: PositiveInt
    """The trainer's rank 0."""
    rollout: tuple[PositiveInt, ...]
    """The rollout services, by replica."""


class Deployment(Section):
    """Everything a service needs to know besides its own name."""

    run_id: str
    """Unique id of the run; `--resume` keeps it."""
    incarnation: NonNegativeInt
    """How many times the run was resumed."""
    recipe: Recipe
    """The resolved recipe."""
    addresses: Addresses
    """Where the services listen."""
    metrics_ports: MetricsPorts
    """Where their metrics are."""
    redis_url: str
    """URL of the queue's server, password included: this file is readable by its owner only."""
    run_directory: Path
    """Folder of the run's records, logs and checkpoints."""
    model_directory: Path
    """Folder with config.json, tokenizer.json and safetensors."""
    cache_directory: Path
    """Folder of results that other runs may reuse, such as a warm start."""
    trainer_rendezvous: str
    """host:port where the trainer's ranks meet."""

    @property
    def version_run_id(self) -> str:
        """The run id of policy versions: steps repeat after a resume, so each incarnation has its own."""
        return f"{self.run_id}.{self.incarnation}"


def write_deployment(deployment: Deployment, path: Path) -> None:
    """Writes the file, readable by its owner only; a reader sees the old file or the new one, never a part."""
    partial = path.with_suffix(".partial")
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(deployment.model_dump_json(indent=2))
    partial.replace(path)


def read_deployment(path: Path) -> Deployment:
    """The deployment of a file.

    Raises:
        ConfigError: the file is missing or no deployment.
    """
    try:
        return Deployment.model_validate_json(path.read_text())
    except OSError as error:
        raise ConfigError(
            f"deployment file {path} cannot be read ({error.strerror}); `furlong smoke` writes it"
        ) from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ConfigError(f"deployment file {path}: {where}: {first['msg']}; let furlong write it again") from error
