"""The whole loop with the real engines for a few steps, and its continuation from the checkpoint."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

# A shorter warm start than the recipe's: enough for replies that the grader takes, not enough to learn from in earnest.
SHORT_WARM_START = ("trainer.warm_start.good_steps=150", "trainer.warm_start.mixed_steps=30")


@dataclass(frozen=True, kw_only=True)
class FinishedRun:
    """A smoke run that has ended."""

    folder: Path
    """Where it ran."""
    exit_code: int
    """Its exit code."""
    output: str
    """What it printed."""
    errors: str
    """What it printed on standard error."""
    evidence: dict[str, object]
    """Its evidence."""


def furlong_command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "services.cli.main", "smoke", *arguments]


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}


def run_smoke(folder: Path, *arguments: str) -> FinishedRun:
    done = subprocess.run(
        furlong_command(*arguments, "--json", "evidence.json"),
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=850,
        check=False,
    )
    path = folder / "evidence.json"
    assert path.exists(), f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
    return FinishedRun(
        folder=folder,
        exit_code=done.returncode,
        output=done.stdout,
        errors=done.stderr,
        evidence=json.loads(path.read_text()),
    )


@pytest.fixture(scope="module")
def first_run(tmp_path_factory: pytest.TempPathFactory) -> FinishedRun:
    """Three steps after a short warm start."""
    sets = [word for value in SHORT_WARM_START for word in ("--set", value)]
    return run_smoke(tmp_path_factory.mktemp("smoke"), "--steps", "3", *sets)


def leftovers(folder: Path) -> list[str]:
    """Processes of the run that still live, and its shared memory."""
    run_id = json.loads((folder / "runs" / "smoke" / "deployment.json").read_text())["run_id"]
    found = [path.name for path in Path("/dev/shm").glob(f"furlong-{run_id}*")]
    for process in psutil.process_iter(["cmdline"]):
        if str(folder) in " ".join(process.info["cmdline"] or []):
            found.append(str(process))
    return found


def test_three_steps_are_trained_published_and_verified(first_run: FinishedRun) -> None:
    evidence = first_run.evidence
    assert evidence["steps"] == 3
    assert evidence["versions_committed"] == 3
    assert evidence["versions_aborted"] == 0
    assert evidence["engine_digests_equal"] is True
    samples = evidence["samples"]
    assert isinstance(samples, dict)
    assert samples["trained"] > 0
    assert samples["pushed"] == samples["trained"]
    assert samples["lost"] == 0


def test_engine_and_trainer_agree_on_every_token(first_run: FinishedRun) -> None:
    mismatch = first_run.evidence["logprob_mismatch"]
    assert isinstance(mismatch, dict)
    assert 0 < mismatch["mean"] <= 1e-5
    assert mismatch["max"] <= 1e-3


def test_drafts_are_accepted(first_run: FinishedRun) -> None:
    lengths = first_run.evidence["accept_length"]
    assert isinstance(lengths, dict)
    assert 1.0 < lengths["first"] <= 2.0
    assert 1.0 < lengths["last"] <= 2.0


def test_the_exit_code_is_the_verdict(first_run: FinishedRun) -> None:
    # Three steps after a short warm start need not learn; the command has to say which it was.
    assert first_run.exit_code in (0, 1)
    verdict = first_run.output.splitlines()[-1]
    assert verdict.startswith("learned:" if first_run.exit_code == 0 else "not learned:")


def test_records_are_complete(first_run: FinishedRun) -> None:
    records = first_run.folder / "runs" / "smoke"
    steps = [json.loads(line) for line in (records / "steps.jsonl").read_text().splitlines()]
    assert [step["step"] for step in steps] == [0, 1, 2]
    assert all(step["is_committed"] and step["are_digests_equal"] for step in steps)
    assert all(step["max_lag_steps"] == 0 for step in steps)
    assert (records / "learning_curve.png").stat().st_size > 10_000
    logs = {path.name for path in (records / "logs").iterdir()}
    assert logs == {"reward-0.log", "rollout-0.log", "trainer-0.log", "valkey.log", "weights.log"}
    # SGLang sets up logging of its own while it starts; ours is not lost by it.
    assert '"event": "generation started"' in (records / "logs" / "rollout-0.log").read_text()


def test_nothing_is_left_running(first_run: FinishedRun) -> None:
    assert leftovers(first_run.folder) == []


def test_resume_goes_on_from_the_checkpoint(first_run: FinishedRun) -> None:
    before = first_run.evidence["held_out_accuracy"]
    resumed = run_smoke(first_run.folder, "--resume", "--steps", "5")
    records = first_run.folder / "runs" / "smoke"
    steps = [json.loads(line)["step"] for line in (records / "steps.jsonl").read_text().splitlines()]
    assert steps == [0, 1, 2, 3, 4]
    evidence = resumed.evidence
    assert evidence["steps"] == 5
    assert evidence["versions_committed"] == 5
    after = evidence["held_out_accuracy"]
    assert isinstance(before, dict)
    assert isinstance(after, dict)
    assert after["before"] == before["before"]
    samples = evidence["samples"]
    assert isinstance(samples, dict)
    assert samples["lost"] == 0
    assert leftovers(first_run.folder) == []


def test_ctrl_c_while_engines_start_leaves_nothing(first_run: FinishedRun) -> None:
    command = subprocess.Popen(
        furlong_command("--name", "interrupted"),
        cwd=first_run.folder,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    log = first_run.folder / "runs" / "interrupted" / "logs" / "rollout-0.log"
    deadline = time.monotonic() + 120
    while not (log.exists() and log.stat().st_size) and time.monotonic() < deadline:
        time.sleep(0.1)
    time.sleep(5)
    began = time.monotonic()
    command.send_signal(signal.SIGINT)
    _, errors = command.communicate(timeout=30)
    assert time.monotonic() - began < 10.0
    assert command.returncode == 130
    assert errors == "furlong: interrupted; everything was stopped\n"
    assert leftovers(first_run.folder) == []
