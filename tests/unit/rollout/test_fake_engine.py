"""What the fake engine promises to the tests that use it."""

import asyncio

import pytest

from services.common.errors import StateConflictError, TransferError, UnavailableError
from services.common.records import FinishReason, PolicyVersion, VersionSpan
from services.rollout.engine import Engine, EngineResponse, SamplingParameters
from services.rollout.fake_engine import FakeEngine

SAMPLING = SamplingParameters(temperature=1.0, top_p=1.0, max_new_tokens=16)


def version(step: int) -> PolicyVersion:
    return PolicyVersion(run_id="r", step=step)


def test_same_calls_give_same_responses_and_samples_differ() -> None:
    async def responses() -> list[EngineResponse]:
        engine: Engine = FakeEngine()
        await engine.commit(version(3), [])
        return await engine.generate([5, 6], sampling=SAMPLING, num_samples=4)

    first, second = asyncio.run(responses()), asyncio.run(responses())
    assert first == second
    assert len({response.token_ids for response in first}) == 4
    for response in first:
        assert response.token_ids[-1] == 0
        assert response.finish_reason is FinishReason.STOP
        assert response.version_spans == (VersionSpan(step=3, num_tokens=len(response.token_ids)),)
        assert response.logprobs == tuple(-token / 64 for token in response.token_ids)


def test_greedy_samples_are_equal_and_long_responses_are_cut() -> None:
    async def run() -> None:
        engine = FakeEngine(respond=lambda prompt, step, sample: (sample + 1, 2, 3, 0))
        await engine.commit(version(0), [])
        greedy = SamplingParameters(temperature=0.0, top_p=1.0, max_new_tokens=2)
        responses = await engine.generate([5], sampling=greedy, num_samples=2)
        assert [response.token_ids for response in responses] == [(1, 2), (1, 2)]
        assert responses[0].finish_reason is FinishReason.LENGTH

    asyncio.run(run())


def test_commit_between_tokens_shows_in_the_spans() -> None:
    async def run() -> None:
        engine = FakeEngine(respond=lambda prompt, step, sample: (9,) * 5 + (0,), seconds_per_token=0.05)
        await engine.commit(version(0), [])
        running = asyncio.ensure_future(engine.generate([5], sampling=SAMPLING, num_samples=1))
        await asyncio.sleep(0.125)
        await engine.commit(version(1), [])
        (response,) = await running
        assert [span.step for span in response.version_spans] == [0, 1]
        assert sum(span.num_tokens for span in response.version_spans) == 6

    asyncio.run(run())


def test_refused_commit_keeps_the_version_once() -> None:
    async def run() -> None:
        engine = FakeEngine()
        await engine.commit(version(0), [])
        engine.refusal = "rank 0 target: no"
        with pytest.raises(TransferError, match="rank 0 target: no"):
            await engine.commit(version(1), [])
        assert engine.version == version(0)
        await engine.commit(version(1), [])
        assert [committed for committed, _ in engine.commits] == [version(0), version(1)]

    asyncio.run(run())


def test_engine_without_a_version_or_after_shutdown_refuses() -> None:
    async def run() -> None:
        engine = FakeEngine()
        with pytest.raises(StateConflictError, match="publish a version first"):
            await engine.generate([5], sampling=SAMPLING, num_samples=1)
        engine.shutdown()
        with pytest.raises(UnavailableError, match="was shut down"):
            await engine.commit(version(0), [])

    asyncio.run(run())
