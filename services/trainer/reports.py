"""What one training step reports, and the board where calls read it."""

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum

from services.common.records import PolicyVersion

# How soon a stream of reports notices that its caller has left.
_WATCH_POLL_SECONDS = 1.0


@dataclass(frozen=True, kw_only=True)
class UpdateSummary:
    """Figures of the optimizer steps of one round; all zero when there was nothing to train on."""

    policy_loss: float = 0.0
    """The policy loss as the recipe aggregates it, without KL and entropy terms."""
    mtp_loss: float = 0.0
    """Mean loss of the MTP layer over the updates."""
    gradient_norm: float = 0.0
    """Norm before clipping, mean over the updates."""
    clip_fraction: float = 0.0
    """Share of response tokens whose surrogate was clipped."""
    logprob_mismatch_mean: float = 0.0
    """Mean absolute difference of trainer and engine log-probabilities."""
    logprob_mismatch_max: float = 0.0
    """Largest such difference."""
    importance_weight_mean: float = 0.0
    """Mean importance weight."""
    importance_cut_fraction: float = 0.0
    """Share of response tokens whose importance ratio was out of bounds."""
    rejected_token_fraction: float = 0.0
    """Share of response tokens that were rejected before training."""
    sequence_masked_fraction: float = 0.0
    """Share of response tokens that off-policy sequence masking left without a loss."""
    entropy: float = 0.0
    """Mean entropy over response tokens, in nats."""
    kl: float = 0.0
    """Mean estimate of the divergence from the reference, in nats; 0 without a KL term."""
    num_samples_rejected: dict[str, int] = field(default_factory=dict)
    """Samples of which no token was trained on, by reason; see screening.py."""


@dataclass(frozen=True, kw_only=True)
class RoundSummary:
    """Figures of the groups of one round."""

    mean_reward: float
    """Mean reward over all samples of the round, dropped groups included."""
    num_groups: int
    """Groups trained on."""
    num_samples: int
    """Samples trained on."""
    num_samples_left_out: dict[str, int]
    """Samples of its groups that were not trained on, by reason; see sample_selection.py and screening.py."""
    num_response_tokens: int
    """Response tokens trained on."""
    num_groups_dropped: dict[str, int]
    """Groups dropped or rejected, by reason."""
    accept_length: float
    """Tokens per verify step of the trained samples; 0 without speculation."""
    thinking_rate: float
    """Share of trained samples with a non-empty thought."""
    mean_response_tokens: float
    """Mean response length."""
    mean_lag_steps: float
    """Versions the oldest token of a sample was behind, mean."""
    max_lag_steps: int
    """Largest such distance."""


@dataclass(frozen=True, kw_only=True)
class PublishSummary:
    """How a version reached the engines."""

    is_committed: bool
    """Committed on all engines."""
    are_digests_equal: bool
    """Every engine's live parameters have the trainer's digests."""
    sync_seconds: float
    """From the start of publishing to the commit."""
    pause_seconds: float
    """Longest pause of an engine."""
    num_aborted: int
    """Attempts that were aborted before."""


@dataclass(frozen=True, kw_only=True)
class StepReport:
    """One training step: version step became version step + 1."""

    step: int
    """The step, from 0."""
    round: RoundSummary
    """Its groups."""
    update: UpdateSummary
    """Its optimizer steps."""
    publish: PublishSummary
    """Its new version."""
    wait_seconds: float
    """Waiting for groups."""
    train_seconds: float
    """Training."""
    held_out_accuracy: float | None
    """Held-out mean reward; None when not evaluated."""
    queue_depth: int
    """Groups in the stream afterwards."""


class Phase(Enum):
    """What the trainer is doing."""

    STARTING = "starting"
    WARM_START = "warm_start"
    PUBLISHING = "publishing"
    WAITING = "waiting"
    TRAINING = "training"
    FAILED = "failed"


@dataclass(kw_only=True)
class Status:
    """The trainer at one moment."""

    phase: Phase = Phase.STARTING
    """What it is doing."""
    version: PolicyVersion | None = None
    """Last committed version."""
    target_step: int = 0
    """The goal; 0: none."""
    warm_start_step: int = 0
    """Warm-start steps done."""
    num_warm_start_steps: int = 0
    """Warm-start steps in all; 0 when there is none or it came from the cache."""
    warm_start_seconds: float = 0.0
    """Duration of the warm start."""
    last_error: str = ""
    """The failure as one line."""
    checkpoint_path: str = ""
    """Newest checkpoint."""
    num_versions_committed: int = 0
    """Versions committed by this process, version zero not counted."""
    num_versions_aborted: int = 0
    """Versions aborted by this process."""


class Board:
    """Status, goal and reports: written by the loop, read by calls. Thread-safe."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._reports: list[StepReport] = []
        self._is_closed = False
        self._checkpoint_wanted = False
        self.status = Status()

    def add_report(self, report: StepReport) -> None:
        """Publishes the report of a step."""
        with self._changed:
            self._reports.append(report)
            self._changed.notify_all()

    def reports_from(self, first_step: int, *, is_watched: Callable[[], bool] = lambda: True) -> Iterator[StepReport]:
        """Reports of step first_step and later as they come, until the board is closed or is_watched says no."""
        index = 0
        while is_watched():
            report = self._report_at(index)
            if report is not None:
                index += 1
                if report.step >= first_step:
                    yield report
            elif self._is_closed:
                return

    def raise_target(self, target_step: int) -> int:
        """Moves the goal up to target_step, never down; returns the goal in force."""
        with self._changed:
            self.status.target_step = max(self.status.target_step, target_step)
            self._changed.notify_all()
            return self.status.target_step

    def request_checkpoint(self) -> None:
        """Has the loop save before its next step."""
        with self._changed:
            self._checkpoint_wanted = True
            self._changed.notify_all()

    def checkpoint_saved(self, path: str) -> None:
        """Tells that a checkpoint is complete."""
        with self._changed:
            self._checkpoint_wanted = False
            self.status.checkpoint_path = path
            self._changed.notify_all()

    def wait_for_checkpoint(self, *, timeout_seconds: float) -> bool:
        """Waits until no checkpoint is wanted any more; False when it takes too long or the board is closed."""
        with self._changed:
            self._changed.wait_for(lambda: not self._checkpoint_wanted or self._is_closed, timeout_seconds)
            return not self._checkpoint_wanted

    def wait_for_work(self, *, step: int, timeout_seconds: float) -> tuple[bool, bool]:
        """Waits a while for work: (a step is to be done, a checkpoint is wanted)."""
        with self._changed:
            self._changed.wait_for(lambda: self.status.target_step > step or self._checkpoint_wanted, timeout_seconds)
            return self.status.target_step > step, self._checkpoint_wanted

    def close(self) -> None:
        """Ends all streams of reports."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def _report_at(self, index: int) -> StepReport | None:
        with self._changed:
            self._changed.wait_for(lambda: len(self._reports) > index or self._is_closed, _WATCH_POLL_SECONDS)
            return self._reports[index] if len(self._reports) > index else None
