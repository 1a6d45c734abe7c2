"""The evidence: its keys and its arithmetic."""

import pytest

from services.cli.records import RolloutStatus, StepReport
from services.cli.smoke.evidence import EvidenceValue, PhaseSeconds, RunFigures, build_evidence
from tests.unit.cli.sample_records import (
    make_evaluation,
    make_report,
    make_rollout_status,
    make_trainer_status,
)

SECONDS = PhaseSeconds(install=100.0, start=20.0, warm_start=55.0, rl=200.0, total=300.0)


def evidence_of(
    reports: list[StepReport],
    rollouts: list[RolloutStatus],
    *,
    queued_at_start: int = 0,
    queued_at_end: int = 0,
) -> dict[str, EvidenceValue]:
    figures = RunFigures(
        before=make_evaluation(0.4, thinking_rate=0.3),
        after=make_evaluation(0.9, thinking_rate=0.8),
        reports=reports,
        session_reports=reports,
        trainer=make_trainer_status(committed=len(reports)),
        rollouts=rollouts,
        num_queued_at_start=queued_at_start,
        num_queued_at_end=queued_at_end,
        samples_per_prompt=8,
    )
    return build_evidence(figures, seconds=SECONDS, config_digest="abc", seed=5)


def test_the_keys_are_the_documented_ones_in_order() -> None:
    evidence = evidence_of([make_report(0)], [make_rollout_status(num_groups_pushed=32)])
    assert list(evidence) == [
        "held_out_accuracy",
        "steps",
        "seconds",
        "versions_committed",
        "versions_aborted",
        "engine_digests_equal",
        "accept_length",
        "thinking_rate",
        "logprob_mismatch",
        "samples",
        "tokens_per_second",
        "sync_seconds",
        "config_digest",
        "seed",
    ]
    assert evidence["held_out_accuracy"] == {"before": 0.4, "after": 0.9}
    assert evidence["thinking_rate"] == {"before": 0.3, "after": 0.8}
    assert evidence["seconds"] == {"install": 100, "start": 20, "warm_start": 55, "rl": 200, "total": 300}
    assert (evidence["config_digest"], evidence["seed"], evidence["steps"]) == ("abc", 5, 1)


def test_figures_over_steps() -> None:
    reports = [
        make_report(0, accept_length=1.6, sync_seconds=0.9, pause_seconds=0.01, logprob_mismatch_max=1e-6),
        make_report(1, accept_length=0.0, sync_seconds=0.3, pause_seconds=0.03, logprob_mismatch_max=4e-6),
        make_report(2, accept_length=1.9, sync_seconds=0.5, pause_seconds=0.02, logprob_mismatch_max=2e-6),
    ]
    evidence = evidence_of(reports, [make_rollout_status(num_groups_pushed=96)])
    assert evidence["accept_length"] == {"first": 1.6, "last": 1.9}
    assert evidence["sync_seconds"] == {"median": 0.5, "max": 0.9, "pause_median": 0.02}
    mismatch = evidence["logprob_mismatch"]
    assert isinstance(mismatch, dict)
    assert mismatch["max"] == 4e-6
    assert evidence["engine_digests_equal"] is True


def test_mean_mismatch_is_over_tokens_not_over_steps() -> None:
    reports = [
        make_report(0, num_response_tokens=1000, logprob_mismatch_mean=1e-6),
        make_report(1, num_response_tokens=3000, logprob_mismatch_mean=5e-6),
    ]
    mismatch = evidence_of(reports, [make_rollout_status()])["logprob_mismatch"]
    assert isinstance(mismatch, dict)
    # (1000 * 1e-6 + 3000 * 5e-6) / 4000
    assert mismatch["mean"] == pytest.approx(4e-6)


def test_one_unequal_digest_spoils_the_run() -> None:
    reports = [make_report(0), make_report(1, are_digests_equal=False)]
    assert evidence_of(reports, [make_rollout_status()])["engine_digests_equal"] is False


def test_versions_are_counted_as_the_steps_report_them() -> None:
    reports = [make_report(0), make_report(1, is_committed=False), make_report(2)]
    assert evidence_of(reports, [make_rollout_status()])["versions_committed"] == 2


def test_tokens_per_second_of_engines_and_trainer() -> None:
    # Two engines of 6000 tokens in 12 s; 2 steps of 2000 tokens in 2 s.
    evidence = evidence_of([make_report(0), make_report(1)], [make_rollout_status(), make_rollout_status()])
    assert evidence["tokens_per_second"] == {"rollout": 1000.0, "trainer": 1000.0}


def test_no_sample_is_lost_when_all_pushed_ones_are_trained_or_queued() -> None:
    # 3 steps of 256 samples; 100 groups pushed: 96 trained, 4 still queued; 5 dropped before the queue.
    reports = [make_report(0, num_groups_dropped={"equal_rewards": 5}), make_report(1), make_report(2)]
    rollout = make_rollout_status(num_groups_pushed=100, num_groups_dropped={"equal_rewards": 5})
    samples = evidence_of(reports, [rollout], queued_at_end=32)["samples"]
    assert samples == {"pushed": 800, "trained": 768, "dropped": 40, "lost": 0}


def test_a_group_that_the_trainer_refused_is_dropped_not_lost() -> None:
    reports = [make_report(0, num_samples=248, num_groups_dropped={"equal_rewards": 2, "too_old": 1})]
    rollout = make_rollout_status(num_groups_pushed=32, num_groups_dropped={"equal_rewards": 2})
    samples = evidence_of(reports, [rollout])["samples"]
    assert samples == {"pushed": 256, "trained": 248, "dropped": 24, "lost": 0}


def test_samples_left_out_of_a_trained_group_are_dropped_not_lost() -> None:
    reports = [make_report(0, num_samples=248, num_samples_left_out={"overlong": 5, "truncated": 3})]
    samples = evidence_of(reports, [make_rollout_status(num_groups_pushed=32)])["samples"]
    assert samples == {"pushed": 256, "trained": 248, "dropped": 8, "lost": 0}


def test_a_group_that_vanished_is_lost() -> None:
    reports = [make_report(0, num_samples=248)]
    samples = evidence_of(reports, [make_rollout_status(num_groups_pushed=32)])["samples"]
    assert samples == {"pushed": 256, "trained": 248, "dropped": 0, "lost": 8}


def test_groups_found_in_the_queue_of_a_resumed_run_count_as_entered() -> None:
    reports = [make_report(3, num_samples=256)]
    rollout = make_rollout_status(num_groups_pushed=30)
    samples = evidence_of(reports, [rollout], queued_at_start=16)["samples"]
    assert samples == {"pushed": 240, "trained": 256, "dropped": 0, "lost": 0}


def test_a_run_without_steps_has_evidence_as_well() -> None:
    evidence = evidence_of([], [make_rollout_status()])
    assert evidence["steps"] == 0
    assert evidence["engine_digests_equal"] is False
    assert evidence["logprob_mismatch"] == {"mean": 0.0, "max": 0.0}
