"""Where the policy comes from: the newest checkpoint, a cached warm start, a warm start now, or the model as it is."""

import hashlib
import json
import logging
import time
from collections.abc import Callable
from pathlib import Path

from services.common.config.recipe import Recipe
from services.common.errors import AbortedError, InvalidInputError
from services.trainer.checkpoint_store import CheckpointStore
from services.trainer.orders import KeepReference, LoadPolicy, ResetOptimizer, SavePolicy, WarmStartStep
from services.trainer.rank_group import RankGroup
from services.trainer.reports import Board, Phase

logger = logging.getLogger(__name__)

_WARM_START_FORMAT = 1
"""Part of the cache key: raise it when the meaning of a warm start changes."""


def warm_start_cache_folder(recipe: Recipe, *, model_directory: Path, cache_directory: Path) -> Path:
    """The folder of this recipe's warm start: another model, seed or setting gives another folder."""
    digest = hashlib.sha256(f"{_WARM_START_FORMAT}".encode())
    for name in ("config.json", "tokenizer.json", "model.safetensors"):
        digest.update((model_directory / name).read_bytes())
    settings = {
        "warm_start": recipe.trainer.warm_start.model_dump(mode="json"),
        "mtp": recipe.trainer.mtp.model_dump(mode="json"),
        "seed": recipe.run.seed,
        "dtype": recipe.model.dtype,
    }
    digest.update(json.dumps(settings, sort_keys=True).encode())
    return cache_directory / "warm-start" / digest.hexdigest()[:16]


def start_policy(
    ranks: RankGroup,
    *,
    board: Board,
    checkpoints: CheckpointStore,
    num_warm_start_steps: int,
    warm_start_folder: Path,
    keeps_reference: bool,
    should_stop: Callable[[], bool],
) -> int:
    """Brings the policy into the state the run goes on from; returns the steps behind it.

    Args:
        keeps_reference: keep the policy that the run begins with as the reference, over restarts too.

    Raises:
        AbortedError: the process was asked to stop meanwhile.
        InvalidInputError: the run to go on with has no reference.
    """
    step = checkpoints.newest_step()
    if step is not None:
        if keeps_reference:
            _load_reference(ranks, checkpoints.reference_path)
        path = checkpoints.path(step)
        ranks.carry_out(LoadPolicy(folder=path, with_optimizer=True))
        board.checkpoint_saved(str(path))
        logger.info("checkpoint loaded", extra={"step": step})
        return step
    if num_warm_start_steps:
        _warm_start(ranks, board, num_warm_start_steps, warm_start_folder, should_stop)
    if keeps_reference:
        ranks.carry_out(SavePolicy(folder=checkpoints.reference_path, with_optimizer=False))
        ranks.carry_out(KeepReference())
    return 0


def _load_reference(ranks: RankGroup, folder: Path) -> None:
    if not folder.is_dir():
        raise InvalidInputError(
            f"{folder}: is missing, but trainer.algorithm.kl wants the reference a run keeps there from its start; "
            "start a new run, or set trainer.algorithm.kl.placement=off"
        )
    ranks.carry_out(LoadPolicy(folder=folder, with_optimizer=False))
    ranks.carry_out(KeepReference())


def _warm_start(ranks: RankGroup, board: Board, num_steps: int, folder: Path, should_stop: Callable[[], bool]) -> None:
    if folder.is_dir():
        ranks.carry_out(LoadPolicy(folder=folder, with_optimizer=False))
        logger.info("warm start loaded from the cache")
        return
    board.status.phase = Phase.WARM_START
    board.status.num_warm_start_steps = num_steps
    started = time.monotonic()
    for step in range(num_steps):
        if should_stop():
            raise AbortedError(f"stopped at warm-start step {step} of {num_steps}; nothing of it is kept")
        ranks.carry_out(WarmStartStep(step=step))
        board.status.warm_start_step = step + 1
    board.status.warm_start_seconds = time.monotonic() - started
    ranks.carry_out(ResetOptimizer())
    ranks.carry_out(SavePolicy(folder=folder, with_optimizer=False))
    logger.info("warm start done", extra={"steps": num_steps, "seconds": board.status.warm_start_seconds})
