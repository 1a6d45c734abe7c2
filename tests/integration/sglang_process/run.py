"""Drives one real engine through its life and writes down what it saw.

A process of its own: SGLang changes signal handlers, the environment and the start method of whoever starts it.

Usage: run.py FOLDER_A FOLDER_B OUTPUT.json
"""

import asyncio
import json
import os
import sys
import time
from collections.abc import Awaitable
from pathlib import Path

import psutil
from safetensors.torch import load_file

from services.common.config.rollout import EngineConfig
from services.common.errors import FurlongError
from services.common.records import PolicyVersion
from services.rollout.engine import EngineResponse, SamplingParameters
from services.rollout.sglang_cpu.activation import activate_cpu_engine
from tests.integration.sglang_process.prompts import LONG_TOKENS, NUM_SAMPLES, NUM_TOKENS, PROMPTS, SAMPLINGS
from tests.integration.sglang_process.staging import stage

RUN_ID = "engine-test"
GREEDY = SamplingParameters(temperature=0.0, top_p=1.0, max_new_tokens=NUM_TOKENS)
LONG_GREEDY = SamplingParameters(temperature=0.0, top_p=1.0, max_new_tokens=LONG_TOKENS)


def main() -> None:
    folder_a, folder_b, output = map(Path, sys.argv[1:])
    cores = sorted(os.sched_getaffinity(0))
    activate_cpu_engine(device="cpu", tp=1, environment=os.environ, search_path=sys.path, cores=cores)
    output.write_text(json.dumps(asyncio.run(_observe(folder_a, folder_b))))


async def _observe(folder_a: Path, folder_b: Path) -> dict[str, object]:
    # SGLang can be imported only after activate_cpu_engine.
    from services.rollout.sglang_engine import SglangEngine

    seen: dict[str, object] = {}
    started = time.monotonic()
    config = EngineConfig(max_running_requests=32, max_total_tokens=8192, context_length=512)
    engine = await SglangEngine.start(model_path=str(folder_a), config=config, seed=7, dtype="float32", run_id=RUN_ID)
    seen["start_seconds"] = time.monotonic() - started
    staged_a, segment_a = stage(engine.layouts[0], load_file(folder_a / "model.safetensors"), run_id=RUN_ID)
    staged_b, segment_b = stage(engine.layouts[0], load_file(folder_b / "model.safetensors"), run_id=RUN_ID)

    async def greedy() -> list[object]:
        groups = await asyncio.gather(*(engine.generate(p, sampling=GREEDY, num_samples=1) for p in PROMPTS))
        return [_record(group[0]) for group in groups]

    try:
        seen["before_commit"] = await _error(engine.generate(PROMPTS[0], sampling=GREEDY, num_samples=1))
        first = await engine.commit(PolicyVersion(run_id=RUN_ID, step=0), [staged_a])
        seen["first_commit"] = [first.pause_seconds, first.are_digests_equal]
        seen["greedy_a"] = await greedy()
        seen["sampled"] = []
        for sampling in SAMPLINGS:
            groups = await asyncio.gather(
                *(engine.generate(p, sampling=sampling, num_samples=NUM_SAMPLES) for p in PROMPTS)
            )
            seen["sampled"].append([[_record(response) for response in group] for group in groups])

        segment_b.view[len(segment_b.view) // 2] ^= 1
        seen["corrupted"] = await _error(engine.commit(PolicyVersion(run_id=RUN_ID, step=1), [staged_b]))
        segment_b.view[len(segment_b.view) // 2] ^= 1
        seen["other_rank"] = await _error(engine.commit(PolicyVersion(run_id=RUN_ID, step=1), []))
        seen["other_run"] = await _error(engine.commit(PolicyVersion(run_id="other", step=1), [staged_b]))
        seen["step_after_refusals"] = engine.version.step if engine.version else None
        seen["greedy_after_refusals"] = await greedy()
        seen["too_long"] = await _error(engine.generate([5] * 600, sampling=GREEDY, num_samples=1))

        running = asyncio.ensure_future(engine.generate(PROMPTS[0], sampling=LONG_GREEDY, num_samples=3))
        await asyncio.sleep(0.3)
        second = await engine.commit(PolicyVersion(run_id=RUN_ID, step=1), [staged_b])
        seen["second_commit"] = [second.pause_seconds, second.are_digests_equal]
        seen["over_commit"] = [_record(response) for response in await running]
        seen["greedy_b"] = await greedy()

        cancelled = asyncio.ensure_future(engine.generate(PROMPTS[0], sampling=LONG_GREEDY, num_samples=2))
        await asyncio.sleep(0.1)
        cancelled.cancel()
        await asyncio.wait([cancelled])
        seen["greedy_after_cancel"] = await greedy()

        children = _own_children()
        seen["num_processes"] = len(children)
        doomed = asyncio.ensure_future(engine.generate(PROMPTS[0], sampling=LONG_GREEDY, num_samples=32))
        await asyncio.sleep(0.1)
        next(child for child in children if child.name().startswith("sglang::sche")).kill()
        seen["after_kill"] = await _error(doomed)
        seen["after_death"] = await _error(engine.generate(PROMPTS[0], sampling=GREEDY, num_samples=1))
    finally:
        engine.shutdown()
        segment_a.close()
        segment_b.close()
    seen["processes_left"] = [child.name() for child in _own_children()]
    return seen


def _own_children() -> list[psutil.Process]:
    """SGLang's processes; Python's resource tracker ends with this process."""
    children = psutil.Process().children(recursive=True)
    return [child for child in children if "resource_tracker" not in " ".join(child.cmdline())]


def _record(response: EngineResponse) -> dict[str, object]:
    return {
        "token_ids": response.token_ids,
        "logprobs": response.logprobs,
        "spans": [(span.step, span.num_tokens) for span in response.version_spans],
        "finish_reason": response.finish_reason.value,
        "num_verify_steps": response.num_verify_steps,
    }


async def _error(work: Awaitable[object]) -> str:
    """Class and message of the error the call raises; empty if it raises none."""
    try:
        await work
    except FurlongError as error:
        return f"{type(error).__name__}: {error}"
    return ""


if __name__ == "__main__":
    main()
