"""The real engine with EAGLE against transformers, through commits, refusals, and the death of a process."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.integration.sglang_process.hub_models import END_TOKEN, make_model
from tests.integration.sglang_process.prompts import LONG_TOKENS, NUM_SAMPLES, NUM_TOKENS, PROMPTS, SAMPLINGS
from tests.integration.sglang_process.reference import Reference

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

# Both sides are float32 sums in another order; the worst seen is 4e-6.
LOGPROB_TOLERANCE = 1e-4


class Seen:
    """What one engine did, and both models it served."""

    def __init__(self, folder: Path) -> None:
        self.folders = (folder / "a", folder / "b")
        for seed, model in enumerate(self.folders):
            make_model(model, seed=seed)
        output = folder / "seen.json"
        command = [sys.executable, "-m", "tests.integration.sglang_process.run", *map(str, self.folders), str(output)]
        process = subprocess.run(
            command,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "TMPDIR": str(folder)},
            cwd=Path(__file__).parents[2],
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        assert process.returncode == 0, process.stderr[-4000:]
        self.record = json.loads(output.read_text())
        self.files_left = [path.name for path in folder.iterdir() if path not in (*self.folders, output)]
        self.reference_a, self.reference_b = map(Reference, self.folders)


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Seen:
    return Seen(tmp_path_factory.mktemp("engine"))


def test_engine_refuses_before_the_first_commit(seen: Seen) -> None:
    assert seen.record["before_commit"].startswith("StateConflictError: the engine has no weights")


def test_commit_is_short_and_reads_back_equal(seen: Seen) -> None:
    for pause_seconds, are_digests_equal in (seen.record["first_commit"], seen.record["second_commit"]):
        assert are_digests_equal
        assert 0 < pause_seconds < 2


@pytest.mark.parametrize(("key", "step"), [("greedy_a", 0), ("greedy_after_refusals", 0), ("greedy_b", 1)])
def test_greedy_replies_are_those_of_transformers(seen: Seen, key: str, step: int) -> None:
    reference = (seen.reference_a, seen.reference_b)[step]
    for prompt, reply in zip(PROMPTS, seen.record[key], strict=True):
        assert reply["token_ids"] == reference.greedy(prompt, NUM_TOKENS)
        assert reply["spans"] == [[step, len(reply["token_ids"])]]
        assert reply["finish_reason"] == ("stop" if reply["token_ids"][-1] == END_TOKEN else "length")
        assert _worst_logprob(reference, prompt, reply, temperature=1.0) < LOGPROB_TOLERANCE


@pytest.mark.parametrize(("key", "step"), [("greedy_a", 0), ("greedy_b", 1)])
def test_drafts_are_accepted_as_the_mtp_layer_deserves(seen: Seen, key: str, step: int) -> None:
    reference = (seen.reference_a, seen.reference_b)[step]
    num_steps = [reply["num_verify_steps"] for reply in seen.record[key]]
    expected = [
        reference.num_verify_steps(prompt, reply["token_ids"])
        for prompt, reply in zip(PROMPTS, seen.record[key], strict=True)
    ]
    assert num_steps == expected
    # Some drafts are right and some are wrong, else this test shows little.
    num_tokens = sum(len(reply["token_ids"]) - 1 for reply in seen.record[key])
    assert num_tokens / 2 + 20 < sum(num_steps) < num_tokens - 20


@pytest.mark.parametrize("index", range(len(SAMPLINGS)))
def test_logprobs_are_those_at_the_sampling_temperature(seen: Seen, index: int) -> None:
    temperature = SAMPLINGS[index].temperature
    for prompt, group in zip(PROMPTS, seen.record["sampled"][index], strict=True):
        assert len(group) == NUM_SAMPLES
        for reply in group:
            assert _worst_logprob(seen.reference_a, prompt, reply, temperature=temperature) < LOGPROB_TOLERANCE


@pytest.mark.parametrize("index", [0, 1])
def test_samples_have_the_models_distribution(seen: Seen, index: int) -> None:
    surprise, variance, num_likeliest, expected_likeliest, num_tokens = 0.0, 0.0, 0, 0.0, 0
    for prompt, group in zip(PROMPTS, seen.record["sampled"][index], strict=True):
        for reply in group:
            logprobs = seen.reference_a.distributions(prompt, reply["token_ids"], SAMPLINGS[index].temperature)
            probabilities = logprobs.exp()
            tokens = torch.tensor(reply["token_ids"])
            mean = (probabilities * logprobs).sum(-1)
            surprise += float((logprobs.gather(1, tokens[:, None])[:, 0] - mean).sum())
            variance += float(((probabilities * logprobs**2).sum(-1) - mean**2).sum())
            num_likeliest += int((tokens == logprobs.argmax(-1)).sum())
            expected_likeliest += float(probabilities.max(-1).values.sum())
            num_tokens += len(tokens)
    assert num_tokens > 1000
    # Both are sums of independent terms around 0, so four standard deviations are passed once in 15,000 seeds.
    assert abs(surprise) < 4 * math.sqrt(variance)
    assert abs(num_likeliest - expected_likeliest) < 4 * math.sqrt(expected_likeliest)


def test_samples_stay_in_the_nucleus(seen: Seen) -> None:
    num_likeliest = num_tokens = 0
    for prompt, group in zip(PROMPTS, seen.record["sampled"][2], strict=True):
        for reply in group:
            probabilities = seen.reference_a.distributions(prompt, reply["token_ids"], 1.0).exp()
            for row, token in zip(probabilities, reply["token_ids"], strict=True):
                assert float(row[row > row[token]].sum()) < SAMPLINGS[2].top_p + 1e-4
                num_likeliest += int(token == row.argmax())
                num_tokens += 1
    assert 0 < num_likeliest < num_tokens


def test_refused_commits_change_nothing(seen: Seen) -> None:
    assert "has digest" in seen.record["corrupted"]
    assert seen.record["corrupted"].startswith("TransferError: rank 0 ")
    wanted = "TransferError: version engine-test@1 is staged for ranks [], wanted [0]"
    assert seen.record["other_rank"].startswith(wanted)
    assert seen.record["other_run"].startswith("InvalidInputError: version other@1 is of another run")
    assert seen.record["step_after_refusals"] == 0


def test_prompt_beyond_the_context_is_refused(seen: Seen) -> None:
    assert seen.record["too_long"].startswith("InvalidInputError: SGLang refused a prompt of 600 tokens")


def test_commit_during_generation_splits_the_reply(seen: Seen) -> None:
    for reply in seen.record["over_commit"]:
        assert [step for step, _ in reply["spans"]] == [0, 1]
        num_before = reply["spans"][0][1]
        assert 0 < num_before < LONG_TOKENS
        assert len(reply["token_ids"]) == LONG_TOKENS
        assert reply["token_ids"][:num_before] == seen.reference_a.greedy(PROMPTS[0], num_before)


def test_cancelled_requests_leave_the_engine_working(seen: Seen) -> None:
    replies = [reply["token_ids"] for reply in seen.record["greedy_after_cancel"]]
    assert replies == [reply["token_ids"] for reply in seen.record["greedy_b"]]


def test_death_of_a_process_is_told_to_all_callers(seen: Seen) -> None:
    for key in ("after_kill", "after_death"):
        assert seen.record[key].startswith("UnavailableError: SGLang process ")
        assert seen.record[key].endswith("died; restart the rollout service")


def test_shutdown_leaves_no_process_and_no_file(seen: Seen) -> None:
    assert seen.record["num_processes"] == 2
    assert seen.record["processes_left"] == []
    assert seen.files_left == []


def _worst_logprob(
    reference: Reference, prompt: tuple[int, ...], reply: dict[str, list[float]], *, temperature: float
) -> float:
    """Largest difference between the engine's log-probabilities and the reference's."""
    tokens = torch.tensor(reply["token_ids"], dtype=torch.long)
    expected = reference.distributions(prompt, tokens.tolist(), temperature).gather(1, tokens[:, None])[:, 0]
    return float((torch.tensor(reply["logprobs"]) - expected).abs().max())
