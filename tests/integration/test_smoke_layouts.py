"""The whole loop in other layouts, one version behind, at another temperature, with every part of the algorithm."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

SHORT_WARM_START = ("trainer.warm_start.good_steps=60", "trainer.warm_start.mixed_steps=10")
LAYOUTS = {
    "data parallel, one version behind, over-sampled": (
        "trainer.ranks=2",
        "rollout.max_lag_versions=1",
        "rollout.over_sampling_prompts=16",
    ),
    "tensor parallel, over tcp, sampled colder": (
        "trainer.ranks=2",
        "trainer.parallel.tp=2",
        "weights.transport=tcp",
        "rollout.sampling.temperature=0.8",
    ),
    "every part of the algorithm": (
        "trainer.algorithm.type=reinforce_plus_plus",
        "trainer.algorithm.discount=0.99",
        "trainer.algorithm.entropy_coefficient=0.001",
        "trainer.algorithm.max_divergence=0.1",
        "trainer.algorithm.kl.placement=reward",
        "trainer.algorithm.kl.estimator=k1",
        "trainer.algorithm.importance.mode=mask",
        "trainer.algorithm.importance.lower=0.5",
        "trainer.algorithm.importance.normalize=true",
        "trainer.algorithm.rejection.level=geometric",
        "trainer.algorithm.rejection.veto=1e-4",
    ),
}


@pytest.mark.parametrize("settings", LAYOUTS.values(), ids=LAYOUTS.keys())
def test_a_layout_trains_and_its_versions_arrive_unchanged(settings: tuple[str, ...], tmp_path: Path) -> None:
    # Every group trains, so that a policy which cannot add yet still has samples.
    keys = (*SHORT_WARM_START, *settings, "rollout.drop_equal_rewards=false", "rollout.evaluation.every_steps=0")
    sets = [word for key in keys for word in ("--set", key)]
    command = [sys.executable, "-m", "services.cli.main", "smoke", "--steps", "3", "--json", "evidence.json", *sets]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=550, check=False
    )
    assert (tmp_path / "evidence.json").exists(), f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
    evidence = json.loads((tmp_path / "evidence.json").read_text())
    assert (evidence["steps"], evidence["versions_committed"], evidence["versions_aborted"]) == (3, 3, 0)
    assert evidence["engine_digests_equal"] is True
    assert (evidence["samples"]["trained"], evidence["samples"]["lost"]) == (3 * 32 * 8, 0)
    # Every group is accepted, so only the surplus of rounds is ever dropped.
    assert (evidence["samples"]["dropped"] > 0) == ("rollout.over_sampling_prompts=16" in settings)
    steps = [json.loads(line) for line in (tmp_path / "runs/smoke/steps.jsonl").read_text().splitlines()]
    wanted_lags = {0, 1} if "rollout.max_lag_versions=1" in settings else {0}
    assert {step["max_lag_steps"] for step in steps} <= wanted_lags
    uses_reference = any("kl.placement" in key for key in settings)
    # The policy is the reference only before its first update.
    assert [step["kl"] != 0.0 for step in steps] == [uses_reference] * 3
    if wanted_lags == {0}:
        assert evidence["logprob_mismatch"]["max"] <= 1e-3
