"""Scoring and held-out evaluation, by hand."""

import asyncio
from collections.abc import Sequence

import pytest

from services.common.errors import AbortedError, InvalidInputError
from services.common.records import FinishReason, PolicyVersion, Prompt, Score
from services.rollout.engine import EngineResponse, SamplingParameters
from services.rollout.evaluation import Evaluator, ExampleReply
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


def evaluator(engine: FakeEngine, prompts: Sequence[Prompt], *, batch_prompts: int = 10) -> Evaluator:
    return Evaluator(
        engine=engine,
        prompts=prompts,
        decoder=WordDecoder(),
        scorer=ContainsScorer(),
        require_end_token=True,
        batch_prompts=batch_prompts,
    )


async def engine_of_version(step: int) -> FakeEngine:
    engine = FakeEngine(respond=respond, end_token_id=END)
    await engine.commit(PolicyVersion(run_id="r", step=step), ())
    return engine


async def test_figures_over_two_prompts_by_hand() -> None:
    figures = await evaluator(await engine_of_version(3), [prompt("7"), prompt("8")], batch_prompts=1).evaluate(
        num_prompts=0, sampling=SAMPLING, num_examples=1
    )
    assert (figures.version.step, figures.num_prompts) == (3, 2)
    assert figures.mean_reward == 0.5  # the second answer is right but has no end
    assert (figures.thinking_rate, figures.truncation_rate, figures.mean_response_tokens) == (0.5, 0.5, 4.0)
    assert figures.examples == (
        ExampleReply(prompt="?7", response="<think>7</think><|endoftext|>", label="7", reward=1.0),
    )


async def test_only_the_first_prompts_are_evaluated_when_a_number_is_given() -> None:
    figures = await evaluator(await engine_of_version(0), [prompt("7"), prompt("8")]).evaluate(
        num_prompts=1, sampling=SAMPLING, num_examples=0
    )
    assert (figures.num_prompts, figures.mean_reward, figures.examples) == (1, 1.0, ())


async def test_without_prompts_the_remedy_is_named() -> None:
    with pytest.raises(InvalidInputError, match=r"set data\.held_out_data"):
        await evaluator(await engine_of_version(0), []).evaluate(num_prompts=0, sampling=SAMPLING, num_examples=0)


async def test_an_evaluation_over_two_versions_is_given_up() -> None:
    engine = FakeEngine(respond=respond, end_token_id=END, seconds_per_token=0.1)
    await engine.commit(PolicyVersion(run_id="r", step=0), ())
    task = asyncio.create_task(
        evaluator(engine, [prompt("7")]).evaluate(num_prompts=0, sampling=SAMPLING, num_examples=0)
    )
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
