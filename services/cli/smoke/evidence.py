"""The evidence of a run: what `furlong smoke --json FILE` writes. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from services.cli.records import Evaluation, RolloutStatus, StepReport, TrainerStatus

EvidenceValue = int | float | bool | str | dict[str, int] | dict[str, float]


@dataclass(frozen=True, kw_only=True)
class PhaseSeconds:
    """Where the time went."""

    install: float
    """The last installation of the packages into this environment; 0 when unknown."""
    start: float
    """From the first process to the last service that serves, the warm start not counted."""
    warm_start: float
    """The warm start; 0 when it came from the cache."""
    rl: float
    """From the start of generation to the last step."""
    total: float
    """From the command to the result, installation not counted."""


@dataclass(frozen=True, kw_only=True)
class RunFigures:
    """What a run left behind, as the services reported it."""

    before: Evaluation
    """Before the first step."""
    after: Evaluation
    """After the last step."""
    reports: Sequence[StepReport]
    """Every step of the run, those before a resume included."""
    session_reports: Sequence[StepReport]
    """The steps of this session."""
    trainer: TrainerStatus
    """The trainer at the end."""
    rollouts: Sequence[RolloutStatus]
    """The rollout services at the end."""
    num_queued_at_start: int
    """Samples that waited in the queue when the session began; 0 unless it is a resumed one."""
    num_queued_at_end: int
    """Samples that wait in the queue, neither trained nor dropped."""
    samples_per_prompt: int
    """Samples of a group."""


def build_evidence(
    figures: RunFigures, *, seconds: PhaseSeconds, config_digest: str, seed: int
) -> dict[str, EvidenceValue]:
    """The evidence, in the documented order of keys.

    Figures are over all steps of the run; samples, aborted versions and speeds are those of the session.
    """
    reports = figures.reports
    syncs = [report.sync_seconds for report in reports] or [0.0]
    pauses = [report.pause_seconds for report in reports] or [0.0]
    accept_lengths = [report.accept_length for report in reports if report.accept_length > 0] or [0.0]
    return {
        "held_out_accuracy": {"before": figures.before.mean_reward, "after": figures.after.mean_reward},
        "steps": len(reports),
        "seconds": {
            "install": seconds.install,
            "start": seconds.start,
            "warm_start": seconds.warm_start,
            "rl": seconds.rl,
            "total": seconds.total,
        },
        "versions_committed": sum(report.is_committed for report in reports),
        "versions_aborted": figures.trainer.num_versions_aborted,
        "engine_digests_equal": bool(reports) and all(report.are_digests_equal for report in reports),
        "accept_length": {"first": accept_lengths[0], "last": accept_lengths[-1]},
        "thinking_rate": {"before": figures.before.thinking_rate, "after": figures.after.thinking_rate},
        "logprob_mismatch": _mismatch(reports),
        "samples": _samples(figures),
        "tokens_per_second": _tokens_per_second(figures),
        "sync_seconds": {"median": median(syncs), "max": max(syncs), "pause_median": median(pauses)},
        "config_digest": config_digest,
        "seed": seed,
    }


def _mismatch(reports: Sequence[StepReport]) -> dict[str, float]:
    """The mean over response tokens and the maximum over all of them."""
    num_tokens = sum(report.num_response_tokens for report in reports)
    weighted = sum(report.logprob_mismatch_mean * report.num_response_tokens for report in reports)
    return {
        "mean": weighted / num_tokens if num_tokens else 0.0,
        "max": max((report.logprob_mismatch_max for report in reports), default=0.0),
    }


def _samples(figures: RunFigures) -> dict[str, int]:
    """Samples of the session. Lost are those that were queued and then neither trained, dropped nor queued any more.

    Samples that the trainer left out of a group it trained on count as dropped.
    """
    size = figures.samples_per_prompt
    pushed = size * sum(status.num_groups_pushed for status in figures.rollouts)
    trained = sum(report.num_samples for report in figures.session_reports)
    dropped_before_push = size * sum(sum(s.num_groups_dropped.values()) for s in figures.rollouts)
    dropped_after_push = size * _num_groups_refused(figures)
    entered = figures.num_queued_at_start + pushed
    left_out = sum(sum(report.num_samples_left_out.values()) for report in figures.session_reports)
    left = trained + left_out + dropped_after_push + figures.num_queued_at_end
    return {
        "pushed": pushed,
        "trained": trained,
        "dropped": dropped_before_push + left_out + dropped_after_push,
        "lost": max(0, entered - left),
    }


def _num_groups_refused(figures: RunFigures) -> int:
    """Groups the trainer refused: the steps report every drop, the rollout services those before the queue."""
    refused = 0
    for reason in {reason for report in figures.session_reports for reason in report.num_groups_dropped}:
        reported = sum(report.num_groups_dropped.get(reason, 0) for report in figures.session_reports)
        before_push = sum(status.num_groups_dropped.get(reason, 0) for status in figures.rollouts)
        refused += max(0, reported - before_push)
    return refused


def _tokens_per_second(figures: RunFigures) -> dict[str, float]:
    """Of the engines together while they generate, and of the trainer while it trains."""
    rollout = sum(
        status.num_tokens_generated / status.generation_seconds
        for status in figures.rollouts
        if status.generation_seconds > 0
    )
    seconds = sum(report.train_seconds for report in figures.session_reports)
    tokens = sum(report.num_response_tokens for report in figures.session_reports)
    return {"rollout": rollout, "trainer": tokens / seconds if seconds else 0.0}
