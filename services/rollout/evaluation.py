"""Evaluates the policy on held-out prompts with the version the engine holds."""

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass

from services.common.accept_length import accept_length
from services.common.errors import AbortedError, InvalidInputError
from services.common.records import FinishReason, PolicyVersion, Prompt
from services.common.reply_figures import thinking_rate
from services.rollout.engine import Engine, SamplingParameters
from services.rollout.evaluation_figures import LengthFigures, length_figures, pass_rates
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
    """Prompts evaluated."""
    samples_per_prompt: int
    """Responses to each of them."""
    mean_reward: float
    """Mean reward over all responses, without any length penalty."""
    pass_threshold: float
    """A response passes when its reward is at least this."""
    pass_rates: dict[int, float]
    """pass@k by k, ascending."""
    thinking_rate: float
    """Share of responses with a non-empty thought."""
    truncation_rate: float
    """Share of responses cut at the token limit."""
    lengths: LengthFigures
    """Response lengths."""
    accept_length: float
    """Tokens per verify step; 0 without speculation."""
    examples: tuple[ExampleReply, ...]
    """The first replies to the first prompts."""


@dataclass(frozen=True, kw_only=True)
class EvaluationPlan:
    """What to evaluate, and how."""

    num_prompts: int
    """The first so many held-out prompts; all when it is 0 or larger than their number."""
    samples_per_prompt: int
    """Responses to each, at least 1."""
    pass_threshold: float
    """A response passes when its reward is at least this."""
    sampling: SamplingParameters
    """How tokens are drawn."""
    num_examples: int
    """Example replies wanted."""


class Evaluator:
    """Generates and scores held-out prompts, about `batch_responses` responses at a time."""

    def __init__(
        self,
        *,
        engine: Engine,
        prompts: Sequence[Prompt],
        decoder: TextDecoder,
        scorer: Scorer,
        require_end_token: bool,
        batch_responses: int,
    ) -> None:
        self._engine = engine
        self._prompts = prompts
        self._decoder = decoder
        self._scorer = scorer
        self._require_end_token = require_end_token
        self._batch_responses = batch_responses

    async def evaluate(self, plan: EvaluationPlan) -> EvaluationFigures:
        """The figures of the plan.

        Raises:
            InvalidInputError: there are no held-out prompts, or the grader gave a reward that is no finite number.
            AbortedError: a new version was committed meanwhile.
        """
        prompts = self._prompts[: plan.num_prompts or None]
        if not prompts:
            raise InvalidInputError("there are no held-out prompts; set data.held_out_data or use more prompts")
        scored: list[ScoredResponse] = []
        batch_prompts = max(1, self._batch_responses // plan.samples_per_prompt)
        for start in range(0, len(prompts), batch_prompts):
            scored += await self._evaluate_batch(prompts[start : start + batch_prompts], plan)
        version = self._engine.version
        steps = {span.step for item in scored for span in item.response.version_spans}
        if version is None or steps - {version.step}:
            raise AbortedError(f"the evaluation saw tokens of versions {sorted(steps)}, wanted one; evaluate again")
        return _figures(version, prompts, scored, plan)

    async def _evaluate_batch(self, prompts: Sequence[Prompt], plan: EvaluationPlan) -> list[ScoredResponse]:
        """The responses, those to one prompt together, in the order of the prompts."""
        num_samples = plan.samples_per_prompt
        replies = await asyncio.gather(
            *(
                self._engine.generate(prompt.token_ids, sampling=plan.sampling, num_samples=num_samples)
                for prompt in prompts
            )
        )
        responses = [(prompt, response) for prompt, reply in zip(prompts, replies, strict=True) for response in reply]
        return await asyncio.to_thread(
            score_responses,
            responses,
            decoder=self._decoder,
            scorer=self._scorer,
            require_end_token=self._require_end_token,
        )


def _figures(
    version: PolicyVersion, prompts: Sequence[Prompt], scored: Sequence[ScoredResponse], plan: EvaluationPlan
) -> EvaluationFigures:
    count, size = len(scored), plan.samples_per_prompt
    rewards = [item.reward for item in scored]
    num_bad = sum(not math.isfinite(reward) for reward in rewards)
    if num_bad:
        raise InvalidInputError(f"{num_bad} of {count} rewards are no finite numbers; check the grader")
    lengths = [len(item.response.token_ids) for item in scored]
    return EvaluationFigures(
        version=version,
        num_prompts=len(prompts),
        samples_per_prompt=size,
        mean_reward=math.fsum(rewards) / count,
        pass_threshold=plan.pass_threshold,
        pass_rates=pass_rates(
            [rewards[start : start + size] for start in range(0, count, size)], threshold=plan.pass_threshold
        ),
        thinking_rate=thinking_rate([item.text for item in scored]),
        truncation_rate=sum(item.response.finish_reason is FinishReason.LENGTH for item in scored) / count,
        lengths=length_figures(lengths),
        accept_length=accept_length(
            num_tokens=sum(lengths),
            num_responses=count,
            num_verify_steps=sum(item.response.num_verify_steps for item in scored),
        ),
        examples=tuple(
            ExampleReply(prompt=prompt.text, response=item.text, label=prompt.label, reward=item.reward)
            for prompt, item in list(zip(prompts, scored[::size], strict=True))[: plan.num_examples]
        ),
    )
