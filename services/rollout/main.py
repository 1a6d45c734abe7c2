"""Starts one rollout service: the engine, its gRPC face, and the generation loop on one event loop."""

import asyncio
import logging
import os
import signal
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass

from furlong.rollout.v1 import rollout_pb2_grpc
from redis import Redis

from services.common.errors import FurlongError
from services.common.logging_setup import configure_logging
from services.common.prompts.prompt_source import PromptSource, open_prompt_source
from services.common.prompts.tokenizer import Tokenizer
from services.common.redis_connection import open_redis
from services.common.redis_prompt_ledger import RedisPromptLedger
from services.common.redis_sample_queue import RedisSampleQueue
from services.common.server import ServedService, Server
from services.common.service_process import ServiceProcess, open_service_process
from services.rollout.conversions import evaluation_plan, group_rules, overlong_penalty, training_sampling
from services.rollout.engine import Engine
from services.rollout.engine_thread import LoopCommitter
from services.rollout.evaluation import Evaluator
from services.rollout.generation import GenerationLoop
from services.rollout.generation_control import GenerationControl
from services.rollout.group_making import GroupMaker
from services.rollout.membership import Membership
from services.rollout.metrics import RolloutMetrics
from services.rollout.reward_client import RewardScorer
from services.rollout.servicer import RolloutServicer
from services.rollout.sglang_cpu.activation import activate_cpu_engine
from services.rollout.tally import Tally
from services.weights.client import WeightsClient
from services.weights.receiver import Receiver
from services.weights.receiver_servicer import receiver_service
from services.weights.transport import open_receiver_transports

logger = logging.getLogger(__name__)

_MEMBERSHIP_SECONDS = 2.0


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the service until it is told to stop; 0 when it ended in order."""
    process = open_service_process("rollout", argv)
    engine_config = process.deployment.recipe.rollout.engine
    activate_cpu_engine(
        device=engine_config.device,
        tp=engine_config.tp,
        environment=os.environ,
        search_path=sys.path,
        cores=sorted(os.sched_getaffinity(0)),
    )
    try:
        return asyncio.run(_serve(process))
    except FurlongError as error:
        logger.error("rollout failed", extra={"detail": str(error)})
        return 1


@dataclass(frozen=True, kw_only=True)
class _Parts:
    """What the service is made of, besides its servers."""

    tokenizer: Tokenizer
    tally: Tally
    evaluator: Evaluator
    generation: GenerationLoop


async def _serve(process: ServiceProcess) -> int:
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    engine = await _start_engine(process)
    # After the engine: SGLang sets up logging and installs signal handlers of its own while it starts.
    configure_logging("rollout")
    logging.getLogger("sglang").setLevel(logging.WARNING)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    try:
        parts = _build(process, engine)
        control = GenerationControl(parts.generation, loop, on_failure=stop.set)
        server = await asyncio.to_thread(_start_server, process, engine, loop, parts, control)
        await stop.wait()
        await control.stop()
        await asyncio.to_thread(server.stop)
    finally:
        engine.shutdown()
    return 1 if control.last_error else 0


async def _start_engine(process: ServiceProcess) -> Engine:
    # Not at the top: SGLang can be imported only after activate_cpu_engine.
    from services.rollout.sglang_engine.engine import SglangEngine

    deployment = process.deployment
    return await SglangEngine.start(
        model_path=str(deployment.model_directory),
        config=deployment.recipe.rollout.engine,
        dtype=deployment.recipe.model.dtype,
        seed=deployment.recipe.run.seed + process.index,
        run_id=deployment.version_run_id,
    )


def _build(process: ServiceProcess, engine: Engine) -> _Parts:
    deployment, recipe = process.deployment, process.deployment.recipe
    rollout = recipe.rollout
    tokenizer = Tokenizer.from_folder(deployment.model_directory)
    prompts: PromptSource = open_prompt_source(recipe.data, tokenizer, seed=recipe.run.seed)
    scorer = RewardScorer(deployment.addresses.reward, process.credentials, grader=recipe.reward.grader)
    redis = open_redis(deployment.redis_url)
    ledger = _open_ledger(process, redis)
    worker = f"rollout-{process.index}"
    ledger.give_back_all(worker=worker)
    tally = Tally(RolloutMetrics(process.registry))
    maker = GroupMaker(
        run_id=deployment.run_id,
        engine=engine,
        prompts=prompts,
        decoder=tokenizer,
        scorer=scorer,
        ledger=ledger,
        queue=RedisSampleQueue(redis, run_id=deployment.run_id, max_groups=recipe.redis.max_queued_groups),
        sampling=training_sampling(rollout.sampling),
        samples_per_prompt=rollout.samples_per_prompt,
        penalty=overlong_penalty(rollout),
        rules=group_rules(rollout),
        require_end_token=recipe.reward.require_end_token,
        tally=tally,
    )
    generation = GenerationLoop(
        worker=worker,
        engine=engine,
        ledger=ledger,
        maker=maker,
        max_lag_versions=rollout.max_lag_versions,
        num_rounds=recipe.run.steps,
        has_surplus=rollout.over_sampling_prompts > 0,
        max_groups_in_flight=max(1, 2 * rollout.engine.max_running_requests // rollout.samples_per_prompt),
        tally=tally,
    )
    evaluator = Evaluator(
        engine=engine,
        prompts=prompts.held_out,
        decoder=tokenizer,
        scorer=scorer,
        require_end_token=recipe.reward.require_end_token,
        batch_responses=2 * rollout.engine.max_running_requests,
    )
    return _Parts(tokenizer=tokenizer, tally=tally, evaluator=evaluator, generation=generation)


def _open_ledger(process: ServiceProcess, redis: Redis) -> RedisPromptLedger:
    rollout = process.deployment.recipe.rollout
    return RedisPromptLedger(
        redis,
        run_id=process.deployment.run_id,
        groups_per_round=rollout.prompts_per_step,
        max_prompts_per_round=rollout.max_prompts_per_step,
        lease_seconds=process.deployment.recipe.redis.lease_seconds,
        over_sampling_prompts=rollout.over_sampling_prompts,
    )


def _start_server(
    process: ServiceProcess,
    engine: Engine,
    loop: asyncio.AbstractEventLoop,
    parts: _Parts,
    control: GenerationControl,
) -> Server:
    """Serves, and joins the weights service; blocking, so it runs beside the event loop."""
    deployment, recipe = process.deployment, process.deployment.recipe
    address = deployment.addresses.rollout[process.index]
    engine_id = f"rollout-{process.index}"
    phase_seconds = recipe.weights.phase_timeout_seconds
    receiver = Receiver(
        run_id=deployment.run_id,
        engine_id=engine_id,
        layouts=engine.layouts,
        transports=open_receiver_transports(process.credentials),
        timeout_seconds=phase_seconds,
    )
    servicer = RolloutServicer(
        engine=engine,
        loop=loop,
        tokenizer=parts.tokenizer,
        evaluator=parts.evaluator,
        control=control,
        tally=parts.tally,
        evaluation_plan=evaluation_plan(recipe.rollout.sampling, recipe.rollout.evaluation),
        context_length=recipe.rollout.engine.context_length,
    )
    rollout_service = ServedService(
        full_name="furlong.rollout.v1.RolloutService",
        add_to=lambda server: rollout_pb2_grpc.add_RolloutServiceServicer_to_server(servicer, server),
    )
    server = Server(
        [rollout_service, receiver_service(receiver, LoopCommitter(engine, loop, timeout_seconds=phase_seconds))],
        address=address,
        credentials=process.credentials,
        metrics=process.call_metrics,
    )
    process.serve_metrics(address, deployment.metrics_ports.rollout[process.index])
    _join_weights_service(process, engine, engine_id=engine_id, address=address)
    server.set_serving()
    return server


def _join_weights_service(process: ServiceProcess, engine: Engine, *, engine_id: str, address: str) -> None:
    """Registers the engine, and watches that it stays registered."""
    phase_seconds = process.deployment.recipe.weights.phase_timeout_seconds
    weights = WeightsClient(
        process.deployment.addresses.weights, process.credentials, phase_timeout_seconds=phase_seconds
    )
    weights.wait_until_serving(phase_seconds)
    membership = Membership(
        weights,
        engine_id=engine_id,
        receiver_address=address,
        layouts=engine.layouts,
        period_seconds=_MEMBERSHIP_SECONDS,
    )
    membership.join()
    threading.Thread(target=membership.watch, name="membership", daemon=True).start()


if __name__ == "__main__":
    sys.exit(main())
