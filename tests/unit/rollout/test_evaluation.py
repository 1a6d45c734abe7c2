"""Scoring and held-out evaluation, by hand."""

import asyncio
import math
from collections.abc import Sequence
from dataclasses import replace

import pytest

from services.common.errors import AbortedError, InvalidInputError
from services.common.records import FinishReason, PolicyVersion, Prompt, Score
from services.rollout.engine import EngineResponse, SamplingParameters
from services.rollout.evaluation import EvaluationPlan, Evaluator, ExampleReply
from services.rollout.evaluation_figures import LengthFigures
from services.rollout.fake_engine import FakeEngine
from services.rollout.scoring import ResponseToScore, sample_of, score_responses

END = 0
WORDS = {END: "<|endoftext|>", 1: "<think>", 2: "</think>", 3: "7", 4: "8"}
SAMPLING = SamplingParameters(temperature=1.0, top_p=1.0, max_new_tokens=4)


class WordDecoder:
    """Joins the words of the ids."""

    def decode(self, token_ids: Sequence[int]) -> str:
        return "".join(WORDS[token_id] for token_id in token_ids)


class ContainsScorer:
    """1 when the response contains the label."""

    def __init__(self) -> None:
        self.batches: list[int] = []

    def score_batch(self, items: Sequence[ResponseToScore]) -> list[Score]:
        self.batches.append(len(items))
        return [
            Score(value=float(item.label in item.response), extracted="", rule="string", seconds=0.0, error="")
            for item in items
        ]


def prompt(label: str) -> Prompt:
    return Prompt(text=f"?{label}", token_ids=(9, int(label)), label=label, source="test")


def respond(token_ids: tuple[int, ...], step: int, sample: int) -> tuple[int, ...]:
    """Prompt 7 is answered with a thought, prompt 8 without an end."""
    return (1, 3, 2, END) if token_ids[1] == 7 else (1, 2, 4, 4)


def evaluator(engine: FakeEngine, prompts: Sequence[Prompt], *, batch_responses: int = 10) -> Evaluator:
    return Evaluator(
        engine=engine,
        prompts=prompts,
        decoder=WordDecoder(),
        scorer=ContainsScorer(),
        require_end_token=True,
        batch_responses=batch_responses,
    )


def plan(
    *, num_prompts: int = 0, samples_per_prompt: int = 1, pass_threshold: float = 1.0, num_examples: int = 0
) -> EvaluationPlan:
    return EvaluationPlan(
        num_prompts=num_prompts,
        samples_per_prompt=samples_per_prompt,
        pass_threshold=pass_threshold,
        sampling=SAMPLING,
        num_examples=num_examples,
    )


async def engine_of_version(step: int) -> FakeEngine:
    engine = FakeEngine(respond=respond, end_token_id=END)
    await engine.commit(PolicyVersion(run_id="r", step=step), ())
    return engine


async def test_figures_over_two_prompts_by_hand() -> None:
    figures = await evaluator(await engine_of_version(3), [prompt("7"), prompt("8")], batch_responses=1).evaluate(
        plan(num_examples=1)
    )
    assert (figures.version.step, figures.num_prompts, figures.samples_per_prompt) == (3, 2, 1)
    assert figures.mean_reward == 0.5  # the second answer is right but has no end
    assert (figures.thinking_rate, figures.truncation_rate) == (0.5, 0.5)
    assert figures.lengths == LengthFigures(mean=4.0, median=4.0, p90=4, max=4)
    assert figures.pass_rates == {1: 0.5}
    assert figures.examples == (
        ExampleReply(prompt="?7", response="<think>7</think><|endoftext|>", label="7", reward=1.0),
    )


async def test_only_the_first_prompts_are_evaluated_when_a_number_is_given() -> None:
    figures = await evaluator(await engine_of_version(0), [prompt("7"), prompt("8")]).evaluate(plan(num_prompts=1))
    assert (figures.num_prompts, figures.mean_reward, figures.examples) == (1, 1.0, ())


async def test_several_samples_of_a_prompt_give_pass_rates_and_length_figures() -> None:
    def answer(token_ids: tuple[int, ...], step: int, sample: int) -> tuple[int, ...]:
        """Prompt 7: samples 0 and 1 of 4 are right; prompt 8: none. Sample i has i + 1 tokens."""
        right = token_ids[1] == 7 and sample < 2
        return (*[3 if right else 1] * sample, *([3] if right and sample == 0 else []), END)

    engine = FakeEngine(respond=answer, end_token_id=END)
    await engine.commit(PolicyVersion(run_id="r", step=0), ())
    figures = await evaluator(engine, [prompt("7"), prompt("8")], batch_responses=4).evaluate(
        plan(samples_per_prompt=4, num_examples=2)
    )
    assert (figures.num_prompts, figures.samples_per_prompt, figures.mean_reward) == (2, 4, 0.25)
    # of the six pairs of prompt 7's samples five hold a right one; any three do
    assert figures.pass_rates == pytest.approx({1: 0.25, 2: 5 / 12, 4: 0.5})
    # lengths 2, 2, 3, 4 and 1, 2, 3, 4
    assert figures.lengths == LengthFigures(mean=2.625, median=2.5, p90=4, max=4)
    assert [example.prompt for example in figures.examples] == ["?7", "?8"]


async def test_a_reward_that_is_no_number_is_an_error_not_a_figure() -> None:
    class BrokenScorer(ContainsScorer):
        def score_batch(self, items: Sequence[ResponseToScore]) -> list[Score]:
            return [replace(score, value=math.nan) for score in super().score_batch(items)]

    engine = await engine_of_version(0)
    broken = Evaluator(
        engine=engine,
        prompts=[prompt("7")],
        decoder=WordDecoder(),
        scorer=BrokenScorer(),
        require_end_token=True,
        batch_responses=4,
    )
    with pytest.raises(InvalidInputError, match="1 of 1 rewards are no finite numbers; check the grader"):
        await broken.evaluate(plan())


async def test_without_prompts_the_remedy_is_named() -> None:
    with pytest.raises(InvalidInputError, match=r"set data\.held_out_data"):
        await evaluator(await engine_of_version(0), []).evaluate(plan())


async def test_an_evaluation_over_two_versions_is_given_up() -> None:
    engine = FakeEngine(respond=respond, end_token_id=END, seconds_per_token=0.1)
    await engine.commit(PolicyVersion(run_id="r", step=0), ())
    task = asyncio.create_task(evaluator(engine, [prompt("7")]).evaluate(plan()))
    await asyncio.sleep(0.15)
    await engine.commit(PolicyVersion(run_id="r", step=1), ())
    with pytest.raises(AbortedError, match="tokens of versions"):
        await task


@pytest.mark.parametrize(("require_end_token", "reward"), [(True, 0.0), (False, 1.0)])
def test_a_cut_response_scores_zero_only_where_an_end_token_is_required(require_end_token: bool, reward: float) -> None:
    response = EngineResponse(
        token_ids=(4,),
        logprobs=(-0.5,),
        version_spans=(),
        finish_reason=FinishReason.LENGTH,
        num_verify_steps=0,
    )
    (scored,) = score_responses(
        [(prompt("8"), response)],
        decoder=WordDecoder(),
        scorer=ContainsScorer(),
        require_end_token=require_end_token,
    )
    assert scored.reward == reward
    sample = sample_of(scored, group_id="r/0/5", index=2)
    assert (sample.sample_id, sample.reward, sample.logprobs) == ("r/0/5/2", reward, (-0.5,))
