"""RolloutService over gRPC."""

import asyncio

import grpc
from furlong.rollout.v1 import rollout_pb2, rollout_pb2_grpc

from services.common.conversions import version_to_proto
from services.common.errors import InvalidInputError
from services.common.prompts.tokenizer import Tokenizer
from services.rollout.conversions import (
    MAX_SAMPLES,
    evaluation_plan_from_proto,
    figures_to_proto,
    generated_to_proto,
    sampling_from_proto,
)
from services.rollout.engine import Engine, SamplingParameters
from services.rollout.engine_thread import run_on_loop
from services.rollout.evaluation import EvaluationPlan, Evaluator
from services.rollout.generation_control import GenerationControl
from services.rollout.scoring import ScoredResponse
from services.rollout.tally import Tally

_DEFAULT_DEADLINE_SECONDS = 600.0


class RolloutServicer(rollout_pb2_grpc.RolloutServiceServicer):
    """Maps calls to the engine's event loop."""

    def __init__(
        self,
        *,
        engine: Engine,
        loop: asyncio.AbstractEventLoop,
        tokenizer: Tokenizer,
        evaluator: Evaluator,
        control: GenerationControl,
        tally: Tally,
        evaluation_plan: EvaluationPlan,
        context_length: int,
    ) -> None:
        self._engine = engine
        self._loop = loop
        self._tokenizer = tokenizer
        self._evaluator = evaluator
        self._control = control
        self._tally = tally
        self._evaluation_plan = evaluation_plan
        self._context_length = context_length

    def Generate(
        self, request: rollout_pb2.GenerateRequest, context: grpc.ServicerContext
    ) -> rollout_pb2.GenerateResponse:
        """Responses to one prompt."""
        sampling = sampling_from_proto(request.sampling)
        prompt_token_ids = self._prompt_token_ids(request, sampling)
        num_samples = request.num_samples or 1
        if not 1 <= num_samples <= MAX_SAMPLES:
            raise InvalidInputError(f"num_samples is {num_samples}, wanted 1 to {MAX_SAMPLES}")
        responses = run_on_loop(
            self._loop,
            self._engine.generate(prompt_token_ids, sampling=sampling, num_samples=num_samples),
            timeout_seconds=_remaining_seconds(context),
            what="the generation",
        )
        return rollout_pb2.GenerateResponse(
            responses=[
                generated_to_proto(
                    ScoredResponse(response=item, text=self._tokenizer.decode(item.token_ids), reward=0.0),
                    group_id=request.request_id,
                    index=index,
                )
                for index, item in enumerate(responses)
            ]
        )

    def Evaluate(
        self, request: rollout_pb2.EvaluateRequest, context: grpc.ServicerContext
    ) -> rollout_pb2.EvaluateResponse:
        """Figures over held-out prompts."""
        plan = evaluation_plan_from_proto(request, default=self._evaluation_plan)
        figures = run_on_loop(
            self._loop,
            self._evaluator.evaluate(plan),
            timeout_seconds=_remaining_seconds(context),
            what="the evaluation",
        )
        return figures_to_proto(figures)

    def StartGeneration(
        self, request: rollout_pb2.StartGenerationRequest, context: grpc.ServicerContext
    ) -> rollout_pb2.StartGenerationResponse:
        """Starts the generation loop."""
        return rollout_pb2.StartGenerationResponse(was_running=self._control.start())

    def GetStatus(
        self, request: rollout_pb2.GetStatusRequest, context: grpc.ServicerContext
    ) -> rollout_pb2.GetStatusResponse:
        """What the service is doing."""
        counts = self._tally.figures()
        version = self._engine.version
        return rollout_pb2.GetStatusResponse(
            version=version_to_proto(version) if version else None,
            is_generating=self._control.is_generating,
            num_groups_pushed=counts.num_groups_pushed,
            num_groups_dropped=counts.num_groups_dropped,
            num_samples_generated=counts.num_samples,
            num_tokens_generated=counts.num_tokens,
            generation_seconds=counts.generation_seconds,
            accept_length=counts.accept_length,
            last_error=self._control.last_error,
        )

    def _prompt_token_ids(self, request: rollout_pb2.GenerateRequest, sampling: SamplingParameters) -> tuple[int, ...]:
        token_ids = tuple(request.prompt_token_ids) or self._tokenizer.encode(request.prompt_text)
        if not token_ids:
            raise InvalidInputError("the prompt is empty; give prompt_token_ids or prompt_text")
        wrong = [token_id for token_id in token_ids if not 0 <= token_id < self._tokenizer.vocab_size]
        if wrong:
            raise InvalidInputError(f"token id {wrong[0]} is outside 0 to {self._tokenizer.vocab_size - 1}")
        needed = len(token_ids) + sampling.max_new_tokens
        if needed > self._context_length:
            raise InvalidInputError(
                f"prompt and new tokens need {needed} tokens, the engine has {self._context_length}; shorten one"
            )
        return token_ids


def _remaining_seconds(context: grpc.ServicerContext) -> float:
    remaining = context.time_remaining()
    return _DEFAULT_DEADLINE_SECONDS if remaining is None else min(remaining, _DEFAULT_DEADLINE_SECONDS)
