"""Sections about the run as a whole: its name, its model, its data, and where services listen."""

from typing import Literal

from pydantic import Field

from services.common.config.base import NonNegativeInt, PositiveFloat, PositiveInt, Section


class RunConfig(Section):
    """The run."""

    name: str = Field(default="smoke", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    """Name of the run; folder of its records under `directory`."""
    directory: str = "runs"
    """Folder that holds one folder per run."""
    seed: NonNegativeInt = 0
    """Seed of everything random."""
    steps: PositiveInt = 40
    """Training steps of the run."""


class ModelConfig(Section):
    """The model."""

    preset: Literal["tiny-task", "tiny-byte", ""] = "tiny-task"
    """A built-in tiny model; empty to use `path`."""
    path: str = ""
    """Folder with config.json, tokenizer.json and, unless it is a preset, safetensors."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """dtype of the engine's and the trainer's compute parameters."""


class DataConfig(Section):
    """The prompts."""

    prompt_data: str = ""
    """A .jsonl file; empty to use the built-in two-digit additions."""
    input_key: str = "prompt"
    """Key of the prompt: a string, or a list of chat messages."""
    label_key: str = "label"
    """Key of the right answer."""
    held_out_data: str = ""
    """A .jsonl file of held-out prompts; empty to hold out a share of `prompt_data` by a hash of the prompt."""
    max_prompt_tokens: PositiveInt = 2016
    """Longer prompts are an error that names the line."""


class EndpointConfig(Section):
    """Where a service listens."""

    host: str = "127.0.0.1"
    """Address to bind. Anything but loopback needs `security`."""
    port: int = Field(default=0, ge=0, le=65535)
    """gRPC port; 0 lets placement choose a free one."""
    metrics_port: int = Field(default=0, ge=0, le=65535)
    """Prometheus port; 0 lets placement choose a free one."""


class RedisConfig(Section):
    """The queue's server."""

    url: str = ""
    """redis:// or rediss:// URL; empty starts an embedded Valkey."""
    max_queued_groups: PositiveInt = 1024
    """Unacknowledged groups the stream may hold before pushing is refused."""
    lease_seconds: PositiveFloat = 120.0
    """A prompt lease that is not settled in this time goes back."""


class SecurityConfig(Section):
    """What protects ports that are not on loopback. Files hold the secrets, the recipe only their paths."""

    token_file: str = ""
    """File with the bearer token every call must carry."""
    tls_certificate: str = ""
    """PEM certificate of this service."""
    tls_key: str = ""
    """PEM private key of this service."""
    tls_ca: str = ""
    """PEM certificate authority that signs all peers."""
