"""Starts a MegatronPolicy in this process: the one place that prepares torch and imports megatron."""

import warnings
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from services.common.config.trainer import TrainerConfig
from services.common.errors import ConfigError
from services.trainer.megatron import cpu_shim

if TYPE_CHECKING:
    from services.trainer.megatron.policy import MegatronPolicy


def start_policy(
    *,
    model_dir: Path,
    trainer: TrainerConfig,
    temperature: float,
    dtype: torch.dtype,
    seed: int,
    rank: int,
    world: int,
    master_address: str,
    master_port: int,
) -> "MegatronPolicy":
    """Collective. The policy of this rank with the weights in model_dir; returns when every rank has called it.

    It changes torch for the whole process (cpu_shim) and sets one thread a rank on a CPU, so call it once, in a
    process of its own. Importing this file loads no megatron.

    Args:
        model_dir: folder with a GLM-4.5 config.json and .safetensors.
        temperature: sampling temperature at which log-probabilities are taken.
        seed: seeds what Megatron draws; the weights come from the files.
        master_address: host of rank 0.
        master_port: free TCP port on that host.

    Raises:
        ConfigError: the model or the layout is not supported, or there is no device.
        InvalidInputError: the weights are missing or do not fit config.json.
    """
    device = _take_device(trainer, rank)
    cpu_shim.install()
    with warnings.catch_warnings():
        # Megatron warns of every optional package it misses; what is used needs none.
        warnings.simplefilter("ignore", UserWarning)
        # Not at the top: megatron binds what the shim replaces.
        from services.trainer.megatron.policy import MegatronPolicy
        from services.trainer.megatron.process_groups import RankAddress

    cpu_shim.repair_megatron()
    return MegatronPolicy(
        model_dir=model_dir,
        trainer=trainer,
        temperature=temperature,
        dtype=dtype,
        seed=seed,
        address=RankAddress(rank=rank, world=world, master_address=master_address, master_port=master_port),
        device=device,
    )


def _take_device(trainer: TrainerConfig, rank: int) -> torch.device:
    if trainer.device == "cpu":
        if not cpu_shim.is_needed():
            raise ConfigError(
                'trainer.device is "cpu", but Megatron takes the GPU of this machine; set trainer.device=cuda'
            )
        # Two threads a rank were 50 times slower than one when the cores were shared.
        torch.set_num_threads(1)
        return torch.device("cpu")
    if cpu_shim.is_needed():
        raise ConfigError('trainer.device is "cuda", but torch finds no CUDA device; set trainer.device=cpu')
    device = torch.device("cuda", rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device
