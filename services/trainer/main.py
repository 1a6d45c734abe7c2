"""Starts one trainer rank; rank 0 serves TrainerService and leads, the others follow."""

import logging
import sys
import threading
from collections.abc import Sequence

import torch
from furlong.trainer.v1 import trainer_pb2_grpc

from services.common.config.recipe import Recipe
from services.common.errors import AbortedError, FurlongError
from services.common.prompts.demonstrations import DemonstrationSource
from services.common.prompts.prompt_source import open_demonstrations
from services.common.prompts.tokenizer import Tokenizer
from services.common.redis_connection import open_redis
from services.common.redis_prompt_ledger import RedisPromptLedger
from services.common.redis_sample_queue import RedisSampleQueue
from services.common.server import ServedService, Server
from services.common.service_process import ServiceProcess, open_service_process, stop_on_signals
from services.trainer.checkpoint_store import CheckpointStore
from services.trainer.claiming import RoundCollector
from services.trainer.loop import TrainingLoop
from services.trainer.megatron.hub_config import read_model_shape
from services.trainer.megatron.start import start_policy as start_megatron_policy
from services.trainer.metrics import TrainerMetrics
from services.trainer.orders import StopRank
from services.trainer.policy import Policy
from services.trainer.policy_start import start_policy, warm_start_cache_folder
from services.trainer.publishing import Publisher
from services.trainer.rank_group import RankGroup
from services.trainer.rank_work import RankWork
from services.trainer.reports import Board, Phase
from services.trainer.rollout_client import EvaluationClient
from services.trainer.round_training import RoundTraining
from services.trainer.sample_selection import SampleSelection
from services.trainer.sequence_cost import BY_TOKENS, SequenceCost, forward_work
from services.trainer.servicer import TrainerServicer
from services.trainer.warm_start import WarmStart
from services.weights.client import WeightsClient
from services.weights.sender import Sender
from services.weights.transport import open_source_transport

logger = logging.getLogger(__name__)

# A caller whose stream of reports has just ended asks GetStatus why.
_LAST_WORDS_SECONDS = 3.0


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the rank until it is told to stop; 0 when it ended in order."""
    process = open_service_process("trainer", argv)
    # Megatron announces every setting of every part at INFO.
    logging.getLogger("megatron").setLevel(logging.WARNING)
    if process.index == 0:
        return _lead(process)
    stop_on_signals()
    ranks, _ = _join_ranks(process)
    ranks.follow()
    return 0


def _join_ranks(process: ServiceProcess) -> tuple[RankGroup, Policy]:
    deployment, recipe = process.deployment, process.deployment.recipe
    host, _, port = deployment.trainer_rendezvous.rpartition(":")
    policy: Policy = start_megatron_policy(
        model_dir=deployment.model_directory,
        trainer=recipe.trainer,
        temperature=recipe.rollout.sampling.temperature,
        dtype=getattr(torch, recipe.model.dtype),
        seed=recipe.run.seed,
        rank=process.index,
        world=recipe.trainer.ranks,
        master_address=host,
        master_port=int(port),
    )
    demonstrations = _demonstrations(process)
    transport = open_source_transport(
        recipe.weights.transport,
        run_id=deployment.run_id,
        host=recipe.trainer.endpoint.host,
        credentials=process.credentials,
        idle_timeout_seconds=recipe.weights.phase_timeout_seconds,
    )
    work = RankWork(
        rank=process.index,
        policy=policy,
        sender=Sender(rank=process.index, transport=transport),
        round_training=RoundTraining(
            policy,
            recipe.trainer,
            selection=_selection(recipe),
            sequence_cost=_sequence_cost(process),
            max_response_tokens=recipe.rollout.sampling.max_new_tokens,
            seed=recipe.run.seed,
        ),
        warm_start=WarmStart(policy, demonstrations, recipe.trainer) if demonstrations else None,
    )
    return RankGroup(policy, work), policy


def _selection(recipe: Recipe) -> SampleSelection:
    return SampleSelection(
        max_tokens=recipe.trainer.max_tokens_per_rank,
        drop_overlong=recipe.trainer.overlong_samples == "drop",
        leave_out_truncated=recipe.rollout.overlong.filter,
    )


def _sequence_cost(process: ServiceProcess) -> SequenceCost:
    if process.deployment.recipe.trainer.balance == "tokens":
        return BY_TOKENS
    return forward_work(read_model_shape(process.deployment.model_directory))


def _demonstrations(process: ServiceProcess) -> DemonstrationSource | None:
    recipe = process.deployment.recipe
    tokenizer = Tokenizer.from_folder(process.deployment.model_directory)
    return open_demonstrations(recipe.model.preset, tokenizer, seed=recipe.run.seed)


def _lead(process: ServiceProcess) -> int:
    stop = stop_on_signals()
    board = Board()
    server = Server(
        [
            ServedService(
                full_name="furlong.trainer.v1.TrainerService",
                add_to=lambda server: trainer_pb2_grpc.add_TrainerServiceServicer_to_server(
                    TrainerServicer(board), server
                ),
            )
        ],
        address=process.deployment.addresses.trainer,
        credentials=process.credentials,
        metrics=process.call_metrics,
    )
    process.serve_metrics(process.deployment.addresses.trainer, process.deployment.metrics_ports.trainer)
    server.set_serving()
    try:
        ranks, _ = _join_ranks(process)
        _run_loop(process, ranks, board, stop)
        ranks.carry_out(StopRank())
    except FurlongError as error:
        if isinstance(error, AbortedError) and stop.is_set():
            return 0
        board.status.phase = Phase.FAILED
        board.status.last_error = str(error)
        logger.error("trainer failed", extra={"detail": str(error)})
        board.close()
        stop.wait(_LAST_WORDS_SECONDS)
        return 1
    finally:
        board.close()
        server.stop()
    return 0


def _run_loop(process: ServiceProcess, ranks: RankGroup, board: Board, stop: threading.Event) -> None:
    deployment, recipe = process.deployment, process.deployment.recipe
    checkpoints = CheckpointStore(deployment.run_directory / "checkpoints", keep=recipe.trainer.checkpoint.keep)
    step = start_policy(
        ranks,
        board=board,
        checkpoints=checkpoints,
        num_warm_start_steps=recipe.trainer.warm_start.num_steps if _demonstrations(process) else 0,
        warm_start_folder=warm_start_cache_folder(
            recipe, model_directory=deployment.model_directory, cache_directory=deployment.cache_directory
        ),
        keeps_reference=recipe.trainer.algorithm.kl.placement != "off",
        should_stop=stop.is_set,
    )
    redis = open_redis(deployment.redis_url)
    queue = RedisSampleQueue(redis, run_id=deployment.run_id, max_groups=recipe.redis.max_queued_groups)
    collector = RoundCollector(
        queue=queue,
        ledger=RedisPromptLedger(
            redis,
            run_id=deployment.run_id,
            groups_per_round=recipe.rollout.prompts_per_step,
            max_prompts_per_round=recipe.rollout.max_prompts_per_step,
            lease_seconds=recipe.redis.lease_seconds,
        ),
        max_lag_versions=recipe.rollout.max_lag_versions,
        min_groups=recipe.rollout.prompts_per_step if recipe.rollout.when_short == "error" else 0,
        timeout_seconds=recipe.trainer.claim_timeout_seconds,
        should_stop=stop.is_set,
    )
    loop = TrainingLoop(
        version_run_id=deployment.version_run_id,
        step=step,
        ranks=ranks,
        publisher=_publisher(process, ranks, stop),
        collector=collector,
        queue=queue,
        checkpoints=checkpoints,
        checkpoint_every_steps=recipe.trainer.checkpoint.every_steps,
        evaluation=EvaluationClient(deployment.addresses.rollout[0], process.credentials),
        evaluate_every_steps=recipe.rollout.evaluation.every_steps,
        evaluation_prompts=recipe.rollout.evaluation.num_prompts,
        selection=_selection(recipe),
        decoder=Tokenizer.from_folder(deployment.model_directory),
        board=board,
        metrics=TrainerMetrics(process.registry),
        should_stop=stop.is_set,
    )
    loop.run()


def _publisher(process: ServiceProcess, ranks: RankGroup, stop: threading.Event) -> Publisher:
    recipe = process.deployment.recipe
    weights = WeightsClient(
        process.deployment.addresses.weights,
        process.credentials,
        phase_timeout_seconds=recipe.weights.phase_timeout_seconds,
    )
    return Publisher(
        ranks,
        weights,
        engines_timeout_seconds=recipe.rollout.engine.start_timeout_seconds,
        should_stop=stop.is_set,
    )


if __name__ == "__main__":
    sys.exit(main())
