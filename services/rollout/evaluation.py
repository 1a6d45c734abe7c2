"""Evaluates the policy on held-out prompts with the version the engine holds."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from services.common.accept_length import accept_length
from services.common.errors import AbortedError, InvalidInputError
from services.common.records import FinishReason, PolicyVersion, Prompt
from services.common.reply_figures import thinking_rate
from services.rollout.engine import Engine, EngineResponse, SamplingParameters
from services.rollout.scoring import ScoredResponse, Scorer, TextDecoder, score_responses


@dataclass(frozen=True, kw_only=True)
class ExampleReply:
    """One evaluated reply, for people to read."""

    prompt: str
    """The prompt as text."""
    response: str
    """The response as text."""
    label: str
    """The right answer."""
    reward: float
    """The grader's score."""


@dataclass(frozen=True, kw_only=True)
class EvaluationFigures:
    """The figures of one evaluation."""

    version: PolicyVersion
    """The version that generated."""
    num_prompts: int
    """Prompts evaluated, one response each."""
    mean_reward: float
    """Mean reward."""
    thinking_rate: float
    """Share of responses with a non-empty thought."""
    truncation_rate: float
    """Share of responses cut at the token limit."""
    mean_response_tokens: float
    """Mean response length."""
    accept_length: float
    """Tokens per verify step; 0 without speculation."""
    examples: tuple[ExampleReply, ...]
    """The first replies."""


class Evaluator:
    """Generates and scores held-out prompts, at most `batch_prompts` at a time."""

    def __init__(
        self,
        *,
        engine: Engine,
        prompts: Sequence[Prompt],
        decoder: TextDecoder,
        scorer: Scorer,
        require_end_token: bool,
        batch_prompts: int,
    ) -> None:
        self._engine = engine
        self._prompts = prompts
        self._decoder = decoder
        self._scorer = scorer
        self._require_end_token = require_end_token
        self._batch_prompts = batch_prompts

    async def evaluate(self, *, num_prompts: int, sampling: SamplingParameters, num_examples: int) -> EvaluationFigures:
        """Figures over the first num_prompts held-out prompts, or over all when it is 0 or larger than their number.

        Raises:
            InvalidInputError: there are no held-out prompts.
            AbortedError: a new version was committed meanwhile.
        """
        prompts = self._prompts[: num_prompts or None]
        if not prompts:
            raise InvalidInputError("there are no held-out prompts; set data.held_out_data or use more prompts")
        scored: list[ScoredResponse] = []
        for start in range(0, len(prompts), self._batch_prompts):
            scored += await self._evaluate_batch(prompts[start : start + self._batch_prompts], sampling)
        version = self._engine.version
        steps = {span.step for item in scored for span in item.response.version_spans}
        if version is None or steps - {version.step}:
            raise AbortedError(f"the evaluation saw tokens of versions {sorted(steps)}, wanted one; evaluate again")
        return _figures(version, prompts, scored, num_examples=num_examples)

    async def _evaluate_batch(self, prompts: Sequence[Prompt], sampling: SamplingParameters) -> list[ScoredResponse]:
        replies = await asyncio.gather(
            *(self._engine.generate(prompt.token_ids, sampling=sampling, num_samples=1) for prompt in prompts)
        )
        responses: list[tuple[Prompt, EngineResponse]] = [
            (prompt, reply[0]) for prompt, reply in zip(prompts, replies, strict=True)
        ]
        return await asyncio.to_thread(
            score_responses,
            responses,
            decoder=self._decoder,
            scorer=self._scorer,
            require_end_token=self._require_end_token,
        )


def _figures(
    version: PolicyVersion, prompts: Sequence[Prompt], scored: Sequence[ScoredResponse], *, num_examples: int
) -> EvaluationFigures:
    count = len(scored)
    num_tokens = sum(len(item.response.token_ids) for item in scored)
    return EvaluationFigures(
        version=version,
        num_prompts=count,
        mean_reward=sum(item.reward for item in scored) / count,
        thinking_rate=thinking_rate([item.text for item in scored]),
        truncation_rate=sum(item.response.finish_reason is FinishReason.LENGTH for item in scored) / count,
        mean_response_tokens=num_tokens / count,
        accept_length=accept_length(
            num_tokens=num_tokens,
            num_responses=count,
            num_verify_steps=sum(item.response.num_verify_steps for item in scored),
        ),
        examples=tuple(
            ExampleReply(prompt=prompt.text, response=item.text, label=prompt.label, reward=item.reward)
            for prompt, item in list(zip(prompts, scored, strict=True))[:num_examples]
        ),
    )
