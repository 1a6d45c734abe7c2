"""Generation in SGLang's scheduler processes, and weights committed to them from staging.

SGLang ties itself to one event loop and to the process's main thread: `SglangEngine.start` must be awaited in the main
thread, on the loop that will run every other coroutine. It blocks that loop while the processes start, and takes over
the handler of SIGQUIT, by which SGLang reports a dead process. Whoever wants a handler of SIGTERM or SIGINT on the loop
sets it afterwards. SGLang imports the main module again in each of its processes, so a program that starts an engine
needs `if __name__ == "__main__"`.
"""

import asyncio
import json
import logging
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from sglang.srt.managers.io_struct import (
    ContinueGenerationReqInput,
    GenerateReqInput,
    PauseGenerationReqInput,
    UpdateWeightsFromTensorReqInput,
    UpdateWeightVersionReqInput,
)
from sglang.srt.utils import MultiprocessingSerializer

from services.common.config.rollout import EngineConfig
from services.common.errors import (
    ConfigError,
    InvalidInputError,
    StateConflictError,
    TransferError,
)
from services.common.records import PolicyVersion
from services.rollout.engine import CommitResult, EngineResponse, SamplingParameters
from services.rollout.engine_layout import engine_rank_layout
from services.rollout.sglang_arguments import engine_arguments
from services.rollout.sglang_engine.processes import SglangProcesses, launch_processes
from services.rollout.sglang_responses import read_response
from services.rollout.sglang_weight_loader import LOADER_NAME
from services.rollout.weight_commands import (
    TENSOR_NAME,
    InspectTask,
    Operation,
    PiecesTask,
    WeightAnswer,
    WeightCommand,
    encode_command,
    read_answers,
)
from services.weights.transfer import EngineRankLayout, StagedRank

logger = logging.getLogger(__name__)

# Long enough for the scheduler to notice that the last request has ended.
FLUSH_SECONDS = 1.0


class SglangEngine:
    """Implements the Engine protocol. Requests beyond max_running_requests wait here, not over a commit in SGLang."""

    def __init__(
        self,
        processes: SglangProcesses,
        layouts: Sequence[EngineRankLayout],
        folder: tempfile.TemporaryDirectory[str],
        *,
        config: EngineConfig,
        run_id: str,
    ) -> None:
        """Use `SglangEngine.start`."""
        self._processes = processes
        self._folder = folder
        self._layouts = tuple(layouts)
        self._models = ("target", "draft") if config.speculation.enabled else ("target",)
        self._run_id = run_id
        self._version: PolicyVersion | None = None
        self._num_commits = 0
        self._num_commands = 0
        self._num_running = 0
        self._commit_lock = asyncio.Lock()
        self._committing: asyncio.Future[CommitResult] | None = None
        self._is_serving = asyncio.Event()
        self._is_serving.set()
        self._slots = asyncio.Semaphore(config.max_running_requests)

    @classmethod
    async def start(
        cls, *, model_path: str, config: EngineConfig, seed: int, dtype: str, run_id: str, log_level: str = "error"
    ) -> "SglangEngine":
        """A running engine without a version.

        Args:
            model_path: folder with config.json; weights in it are not read.
            seed: of SGLang's random numbers.
            dtype: "float32" or "bfloat16".

        Raises:
            ConfigError: the model or the recipe cannot work.
            UnavailableError: the engine did not start in config.start_timeout_seconds.
            TransferError: SGLang's parameters are not what the layout says.
        """
        hub_config = _read_config(Path(model_path))
        layouts = [
            engine_rank_layout(
                hub_config, tp=config.tp, rank=rank, ep=1, dtype=dtype, has_draft=config.speculation.enabled
            )
            for rank in range(config.tp)
        ]
        arguments = engine_arguments(config, model_path=model_path, dtype=dtype, seed=seed, log_level=log_level)
        folder = tempfile.TemporaryDirectory(prefix="furlong-engine-")
        try:
            processes = launch_processes(
                arguments, folder=Path(folder.name), start_timeout_seconds=config.start_timeout_seconds
            )
        except BaseException:
            folder.cleanup()
            raise
        engine = cls(processes, layouts, folder, config=config, run_id=run_id)
        try:
            await engine._command_ranks({layout.rank: InspectTask(layout=layout) for layout in layouts})
            # Each flush collects garbage, half a second among the objects of SGLang's start unless they are left out.
            await processes.manager.freeze_gc()
        except BaseException:
            engine.shutdown()
            raise
        return engine

    @property
    def version(self) -> PolicyVersion | None:
        """The committed version it serves; None before the first commit."""
        return self._version

    @property
    def layouts(self) -> Sequence[EngineRankLayout]:
        """The parameters of each rank."""
        return self._layouts

    async def generate(
        self, prompt_token_ids: Sequence[int], *, sampling: SamplingParameters, num_samples: int
    ) -> list[EngineResponse]:
        """num_samples responses to one prompt.

        Raises:
            StateConflictError: no version is committed yet.
            InvalidInputError: the prompt is empty or too long for the engine.
            UnavailableError: the engine is gone.
        """
        prompt = list(prompt_token_ids)
        tasks = [asyncio.ensure_future(self._generate_one(prompt, sampling)) for _ in range(num_samples)]
        try:
            return await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()

    async def commit(self, version: PolicyVersion, staged: Sequence[StagedRank]) -> CommitResult:
        """Pauses, copies staging into target and draft of every rank, sets the version, resumes.

        Running requests go on with the new weights; their further tokens carry the new version, and no later request
        reuses key-value cache of an older version. A cancelled call goes on to its end.

        Raises:
            TransferError: a rank refused; nothing was written in any model of any rank. Should a rank fail to write
                what it has verified, running requests are aborted and the engine has no version.
            InvalidInputError: the version is of another run.
            UnavailableError: the engine is gone.
        """
        pieces = {rank.rank: rank for rank in staged}
        self._check(version, pieces)
        # Cancelled between write and resume, it would leave torn weights in use.
        self._committing = asyncio.ensure_future(self._commit(version, pieces))
        return await asyncio.shield(self._committing)

    def shutdown(self) -> None:
        """Ends the engine and every process of it; waiting calls raise UnavailableError. Twice is the same as once."""
        self._processes.end("the engine was shut down")
        self._folder.cleanup()

    async def _generate_one(self, prompt: list[int], sampling: SamplingParameters) -> EngineResponse:
        async with self._slots:
            await self._is_serving.wait()
            if self._version is None:
                raise StateConflictError("the engine has no weights; publish a version first")
            request = GenerateReqInput(
                input_ids=prompt,
                sampling_params={
                    "temperature": sampling.temperature,
                    "top_p": sampling.top_p,
                    "max_new_tokens": sampling.max_new_tokens,
                },
                return_logprob=True,
                # Cached prefixes are shared under equal keys only: one key per commit, whatever the step is called.
                extra_key=str(self._num_commits),
            )
            self._num_running += 1
            try:
                output = await self._processes.while_alive(
                    anext(self._processes.manager.generate_request(request, None))
                )
            except ValueError as error:
                raise InvalidInputError(f"SGLang refused a prompt of {len(prompt)} tokens: {error}") from error
            finally:
                self._num_running -= 1
        return read_response(output)

    def _check(self, version: PolicyVersion, pieces: Mapping[int, StagedRank]) -> None:
        if version.run_id != self._run_id:
            raise InvalidInputError(
                f"version {version} is of another run, wanted run {self._run_id}; check the trainer"
            )
        wanted = [layout.rank for layout in self._layouts]
        if sorted(pieces) != wanted:
            raise TransferError(
                f"version {version} is staged for ranks {sorted(pieces)}, wanted {wanted}; prepare again"
            )

    async def _commit(self, version: PolicyVersion, pieces: Mapping[int, StagedRank]) -> CommitResult:
        async with self._commit_lock:
            await self._command_pieces(Operation.VERIFY, pieces)
            self._is_serving.clear()
            try:
                pause_seconds = await self._write(version, pieces)
            finally:
                self._is_serving.set()
            answers = await self._command_pieces(Operation.DIGEST, pieces)
            if not self._num_running:
                # Frees the cache of older versions at once; while requests run it ages out.
                await self._processes.while_alive(self._processes.manager.flush_cache(timeout_s=FLUSH_SECONDS))
        num_mismatches = sum(answer.num_mismatches for answer in answers)
        return CommitResult(pause_seconds=pause_seconds, are_digests_equal=num_mismatches == 0)

    async def _write(self, version: PolicyVersion, pieces: Mapping[int, StagedRank]) -> float:
        """Writes verified pieces while generation pauses; the seconds of the pause."""
        manager = self._processes.manager
        started = time.monotonic()
        await manager.pause_generation(PauseGenerationReqInput(mode="in_place"))
        try:
            await self._command_pieces(Operation.WRITE, pieces)
            await self._processes.while_alive(
                manager.update_weight_version(
                    UpdateWeightVersionReqInput(new_version=str(version.step), abort_all_requests=False)
                )
            )
            self._num_commits += 1
            self._version = version
        except TransferError:
            logger.exception("weights are torn", extra={"policy_version": version.step})
            self._version = None
            manager.abort_request(abort_all=True)
            raise
        finally:
            await manager.continue_generation(ContinueGenerationReqInput(torch_empty_cache=False))
        return time.monotonic() - started

    async def _command_pieces(self, operation: Operation, pieces: Mapping[int, StagedRank]) -> list[WeightAnswer]:
        return await self._command_ranks(
            {rank: PiecesTask(operation=operation, staged=staged) for rank, staged in pieces.items()}
        )

    async def _command_ranks(self, tasks: Mapping[int, InspectTask | PiecesTask]) -> list[WeightAnswer]:
        """Has every rank do its task in each of its models, between two forward passes; all answers.

        Raises:
            TransferError: a rank has a problem, or did not answer.
        """
        self._num_commands += 1
        ticket, ranks = f"command-{self._num_commands}", sorted(tasks)
        commands = [
            WeightCommand(ticket=ticket, folder=self._folder.name, rank=rank, task=tasks[rank]) for rank in ranks
        ]
        request = UpdateWeightsFromTensorReqInput(
            serialized_named_tensors=[
                MultiprocessingSerializer.serialize([(TENSOR_NAME, encode_command(command))]) for command in commands
            ],
            load_format=LOADER_NAME,
            # Flushing here would end the scheduler if a request were running.
            flush_cache=False,
        )
        # Not update_weights_from_tensor, which waits for running requests when generation is not paused.
        await self._processes.while_alive(self._processes.manager.update_weights_from_tensor_communicator(request))
        answers = read_answers(Path(self._folder.name), ticket, ranks=ranks, models=self._models)
        problems = [f"rank {answer.rank} {answer.model}: {answer.problem}" for answer in answers if answer.problem]
        if problems:
            raise TransferError("; ".join(problems))
        return answers


def _read_config(model_path: Path) -> dict[str, object]:
    try:
        content = json.loads((model_path / "config.json").read_text())
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"model folder {model_path} has no readable config.json ({error}); check model.path"
        ) from error
    if not isinstance(content, dict):
        raise ConfigError(f"{model_path}/config.json is no JSON object; check model.path")
    return content
