"""The smoke run from options to verdict, with services in process."""

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from services.cli.machine import GIB, PINNED_PACKAGES, MachineFacts
from services.cli.placement.fake_placement import FakePlacement
from services.cli.placement.placement import Placement, ServiceDiedError
from services.cli.smoke.flow import World, run_smoke
from services.cli.smoke.options import SmokeOptions
from services.cli.smoke.verdict import Outcome
from services.cli.smoke.view import PlainView
from services.common.errors import ConfigError, FurlongError, InvalidInputError
from tests.unit.cli.smoke.fake_services import FakeCluster


def good_machine(folder: Path) -> MachineFacts:
    return MachineFacts(
        python_version=(3, 11),
        package_versions=dict(PINNED_PACKAGES),
        available_memory_bytes=20 * GIB,
        free_disk_bytes=50 * GIB,
        free_shared_memory_bytes=GIB,
    )


def world_of(tmp_path: Path, make_placement: Callable[[str], Placement], lines: list[str]) -> World:
    return World(
        make_placement=make_placement,
        look_at_machine=good_machine,
        view=PlainView(lines.append),
        environment={},
        python=sys.executable,
        cache_directory=tmp_path / "cache",
        install_seconds=0.0,
        started=time.monotonic(),
    )


@pytest.fixture
def lines() -> list[str]:
    return []


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path / "runs"


@contextmanager
def cluster_of(**settings: object) -> Iterator[FakeCluster]:
    cluster = FakeCluster(**settings)  # type: ignore[arg-type]
    try:
        yield cluster
    finally:
        cluster.close()


def test_a_run_learns_and_leaves_its_records(tmp_path: Path, runs: Path, lines: list[str]) -> None:
    with cluster_of(accuracies=[0.4, 0.95], num_steps=3) as cluster:
        world = world_of(tmp_path, lambda prefix: cluster.placement, lines)
        result = run_smoke(SmokeOptions(steps=3, evidence_path=tmp_path / "e.json"), world)
    assert result.run.verdict.outcome is Outcome.LEARNED
    assert cluster.trainer.target_steps == [3]
    assert cluster.rollout.num_prompts_asked == [0, 0]
    evidence = json.loads((tmp_path / "e.json").read_text())
    assert evidence == json.loads((runs / "smoke" / "evidence.json").read_text())
    assert evidence["held_out_accuracy"] == {"before": 0.4, "after": 0.95}
    assert evidence["samples"] == {"pushed": 768, "trained": 768, "dropped": 0, "lost": 0}
    assert evidence["versions_committed"] == 3
    assert len((runs / "smoke" / "steps.jsonl").read_text().splitlines()) == 3
    assert (runs / "smoke" / "learning_curve.png").read_bytes().startswith(b"\x89PNG")
    assert json.loads((runs / "smoke" / "recipe.json").read_text())["run"]["steps"] == 3
    assert ((runs / "smoke" / "deployment.json").stat().st_mode & 0o777) == 0o600


def test_processes_start_in_order_and_the_queue_server_stops_last(tmp_path: Path, runs: Path, lines: list[str]) -> None:
    with cluster_of(accuracies=[0.4, 0.95], num_steps=1) as cluster:
        run_smoke(SmokeOptions(steps=1), world_of(tmp_path, lambda prefix: cluster.placement, lines))
        assert list(cluster.placement.specs) == ["valkey", "reward-0", "weights", "rollout-0", "trainer-0"]
        assert cluster.placement.stopped == ["trainer-0", "rollout-0", "weights", "reward-0", "valkey"]
        assert cluster.placement.is_closed


def test_what_the_user_reads_in_plain_lines(tmp_path: Path, runs: Path, lines: list[str]) -> None:
    with cluster_of(accuracies=[0.4, 0.95], num_steps=2) as cluster:
        run_smoke(SmokeOptions(steps=2), world_of(tmp_path, lambda prefix: cluster.placement, lines))
    assert "7991 prompts to train on, 2009 held out; model tiny-task; seed 0" in lines
    assert "trainer warm start: step 1 of 3" in lines
    assert "held-out accuracy before training: 0.400 (2009 prompts; 50% of replies think)" in lines
    assert any(line.startswith("step 2/2  reward 0.500") for line in lines)


def test_a_setting_without_effect_is_said_before_anything_starts(tmp_path: Path, runs: Path, lines: list[str]) -> None:
    options = SmokeOptions(steps=1, overrides=("trainer.updates_per_step=1",))
    with cluster_of(accuracies=[0.4, 0.95], num_steps=1) as cluster:
        run_smoke(options, world_of(tmp_path, lambda prefix: cluster.placement, lines))
    assert lines[0].startswith("warning: trainer.updates_per_step is 1")


def test_a_policy_that_did_not_learn_fails_the_run(tmp_path: Path, runs: Path, lines: list[str]) -> None:
    with cluster_of(accuracies=[0.4, 0.41], num_steps=1) as cluster:
        result = run_smoke(SmokeOptions(steps=1), world_of(tmp_path, lambda prefix: cluster.placement, lines))
    assert result.run.verdict.exit_code == 1


def test_a_users_file_is_evaluated_in_part_and_need_not_be_learned(
    tmp_path: Path, runs: Path, lines: list[str]
) -> None:
    data = tmp_path / "mine.jsonl"
    data.write_text("".join(json.dumps({"q": f"{i}+1", "a": i + 1}) + "\n" for i in range(20)))
    options = SmokeOptions(steps=2, prompt_data=data, input_key="q", label_key="a")
    with cluster_of(accuracies=[0.0, 0.0], num_steps=2, mean_reward=0.0) as cluster:
        result = run_smoke(options, world_of(tmp_path, lambda prefix: cluster.placement, lines))
    assert cluster.rollout.num_prompts_asked == [256, 256]
    assert result.run.verdict.exit_code == 0
    assert result.run.verdict.reason == (
        "no reward was above zero in 512 samples: the model cannot solve these prompts; nothing was learned"
    )


def test_resume_keeps_the_run_its_baseline_and_the_steps_behind_the_checkpoint(
    tmp_path: Path, runs: Path, lines: list[str]
) -> None:
    with cluster_of(accuracies=[0.4, 0.5], num_steps=3) as cluster:
        run_smoke(SmokeOptions(steps=3), world_of(tmp_path, lambda prefix: cluster.placement, lines))
    first = json.loads((runs / "smoke" / "deployment.json").read_text())
    # The checkpoint holds two steps: the third one is redone. One evaluation only: the baseline is on file.
    with cluster_of(accuracies=[0.95], num_steps=3, first_step=2) as cluster:
        options = SmokeOptions(is_resume=True, steps=5)
        result = run_smoke(options, world_of(tmp_path, lambda prefix: cluster.placement, lines))
    second = json.loads((runs / "smoke" / "deployment.json").read_text())
    assert (second["run_id"], second["incarnation"]) == (first["run_id"], 1)
    assert [report.step for report in result.run.figures.reports] == [0, 1, 2, 3, 4]
    assert len((runs / "smoke" / "steps.jsonl").read_text().splitlines()) == 5
    assert result.evidence["held_out_accuracy"] == {"before": 0.4, "after": 0.95}


def test_a_second_run_of_the_name_moves_the_first_aside(tmp_path: Path, runs: Path, lines: list[str]) -> None:
    for _ in range(2):
        with cluster_of(accuracies=[0.4, 0.95], num_steps=1) as cluster:
            run_smoke(SmokeOptions(steps=1), world_of(tmp_path, lambda prefix: cluster.placement, lines))
    assert f"the records of the earlier run are now in {runs / 'smoke.1'}" in lines
    old, new = (json.loads((runs / name / "deployment.json").read_text())["run_id"] for name in ("smoke.1", "smoke"))
    assert old != new


def test_a_service_that_dies_ends_the_run_with_everything_stopped(tmp_path: Path, runs: Path) -> None:
    with cluster_of(accuracies=[0.4], num_steps=9, trainer_hangs_at=2) as cluster:
        placement = cluster.placement

        def kill_after_a_step(line: str) -> None:
            if line.startswith("step 2/9"):
                placement.kill("rollout-0", exit_code=-9)

        world = replace(world_of(tmp_path, lambda prefix: placement, []), view=PlainView(kill_after_a_step))
        with pytest.raises(ServiceDiedError, match="service rollout-0 ended after 1 s with signal 9"):
            run_smoke(SmokeOptions(steps=9), world)
        assert placement.is_closed


def test_a_trainer_that_gives_up_ends_the_run_with_its_reason(tmp_path: Path, runs: Path, lines: list[str]) -> None:
    with cluster_of(accuracies=[0.4], num_steps=9, trainer_hangs_at=1, has_failed=True) as cluster:
        with pytest.raises(FurlongError) as caught:
            run_smoke(SmokeOptions(steps=9), world_of(tmp_path, lambda prefix: cluster.placement, lines))
        assert cluster.placement.is_closed
    assert str(caught.value) == "trainer: round 1 did not arrive within 600 s"


def test_nothing_starts_and_no_record_changes_when_a_prompt_is_bad(
    tmp_path: Path, runs: Path, lines: list[str]
) -> None:
    data = tmp_path / "mine.jsonl"
    data.write_text('{"prompt": "1+1", "label": "2"}\n{"prompt": "é", "label": "2"}\n')
    placement = FakePlacement()
    with pytest.raises(InvalidInputError, match=r"mine\.jsonl:2: "):
        run_smoke(SmokeOptions(prompt_data=data), world_of(tmp_path, lambda prefix: placement, lines))
    assert placement.specs == {}
    assert not (runs / "smoke").exists()


def test_evidence_that_cannot_be_written_is_found_before_the_run(tmp_path: Path, runs: Path, lines: list[str]) -> None:
    options = SmokeOptions(evidence_path=tmp_path / "no" / "e.json")
    with pytest.raises(ConfigError) as caught:
        run_smoke(options, world_of(tmp_path, lambda prefix: FakePlacement(), lines))
    assert str(caught.value) == (f"--json {tmp_path}/no/e.json cannot be written; give a file in an existing folder")
