"""Distributed checkpoints of model and optimizers: complete or absent, readable under another layout of ranks."""

import os
import shutil
import warnings
from pathlib import Path

from megatron.core import dist_checkpointing, parallel_state
from megatron.core.dist_checkpointing.core import CheckpointingException
from megatron.core.dist_checkpointing.mapping import ShardedStateDict
from torch import distributed

from services.common.errors import InvalidInputError
from services.trainer.megatron.checkpoint_writer import InProcessWriter
from services.trainer.megatron.model import RankModel
from services.trainer.megatron.optimizer import PartOptimizer

# Its content is the expert-parallel size, on which the shape of the optimizer's state depends; 0 without an optimizer.
_MARKER = "complete"


def save_checkpoint(folder: Path, model: RankModel, optimizers: list[PartOptimizer]) -> None:
    """Collective. Writes beside the folder and renames at the end, so that the folder is complete or absent.

    Without optimizers the model alone is saved. The folder's parent is on a disk that all ranks share. A folder of that
    name is replaced.
    """
    partial = folder.with_name(f".{folder.name}.partial")
    is_first = distributed.get_rank() == 0
    if is_first:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
    distributed.barrier()
    dist_checkpointing.save(_state(model, optimizers, is_loading=False), str(partial), InProcessWriter())
    distributed.barrier()
    if is_first:
        (partial / _MARKER).write_text(str(_num_expert_ranks() if optimizers else 0))
        if folder.exists():
            shutil.rmtree(folder)
        os.replace(partial, folder)
    distributed.barrier()


def load_checkpoint(folder: Path, model: RankModel, optimizers: list[PartOptimizer], *, with_optimizer: bool) -> None:
    """Collective. Reads what save_checkpoint wrote; without the optimizers, these are reset.

    The model may be laid out in any other way, the optimizers on any other tp and number of replicas.

    Raises:
        InvalidInputError: the folder holds no complete checkpoint, or one of another model, or no optimizers or those
            of another expert-parallel size.
    """
    _check_complete(folder, with_optimizer=with_optimizer)
    wanted = _state(model, optimizers if with_optimizer else [], is_loading=True)
    try:
        with warnings.catch_warnings():
            # Megatron still calls torch's older names.
            warnings.simplefilter("ignore", FutureWarning)
            state = dist_checkpointing.load(wanted, str(folder))
    except CheckpointingException as error:
        reason = str(error).partition("\n")[0]
        raise InvalidInputError(
            f"{folder}: is a checkpoint of another model ({reason}); give one of this model"
        ) from error
    for part in model.parts:
        part.module.load_state_dict({name.removeprefix(part.prefix): value for name, value in state[part.name].items()})
    for optimizer in optimizers:
        if with_optimizer:
            optimizer.load_state(state[f"optimizer_{optimizer.name}"])
        else:
            optimizer.reset()


def _check_complete(folder: Path, *, with_optimizer: bool) -> None:
    try:
        num_expert_ranks = int((folder / _MARKER).read_text())
    except (OSError, ValueError) as error:
        raise InvalidInputError(
            f"{folder}: holds no complete checkpoint; give a folder that a trainer's save finished"
        ) from error
    if with_optimizer and not num_expert_ranks:
        raise InvalidInputError(f"{folder}: was saved without an optimizer; load it without one")
    if with_optimizer and num_expert_ranks != _num_expert_ranks():
        raise InvalidInputError(
            f"{folder}: the optimizer was saved with ep {num_expert_ranks}, but this run has ep {_num_expert_ranks()}; "
            f"set trainer.parallel.ep={num_expert_ranks} or load without the optimizer"
        )


def _num_expert_ranks() -> int:
    size: int = parallel_state.get_expert_model_parallel_world_size()
    return size


def _state(model: RankModel, optimizers: list[PartOptimizer], *, is_loading: bool) -> ShardedStateDict:
    metadata = {
        "singleton_local_shards": False,
        "chained_optim_avoid_prefix": True,
        "dp_cp_group": parallel_state.get_data_parallel_group(with_context_parallel=True),
    }
    state: ShardedStateDict = {
        part.name: part.module.sharded_state_dict(prefix=part.prefix, metadata=metadata) for part in model.parts
    }
    for optimizer in optimizers:
        optimizer.fill_state()
        state[f"optimizer_{optimizer.name}"] = optimizer.megatron.sharded_state_dict(
            state[optimizer.name], is_loading=is_loading, metadata=metadata
        )
    return state
