"""What the command knows about a run: the figures of steps and evaluations, and what the services report."""

from dataclasses import dataclass
from enum import Enum


class TrainerPhase(Enum):
    """What the trainer is doing."""

    STARTING = "starting"
    WARM_START = "warm start"
    PUBLISHING = "publishing"
    WAITING = "waiting"
    TRAINING = "training"
    FAILED = "failed"


@dataclass(frozen=True, kw_only=True)
class TrainerStatus:
    """The trainer at one moment."""

    phase: TrainerPhase
    """What it is doing."""
    committed_step: int | None
    """Step of the last committed version; None before the first."""
    warm_start_step: int
    """Warm-start steps done."""
    num_warm_start_steps: int
    """Warm-start steps in all; 0 when there is none or it came from the cache."""
    warm_start_seconds: float
    """Time the warm start took; 0 when it came from the cache."""
    last_error: str
    """Why it failed; empty when it did not."""
    num_versions_aborted: int
    """Versions aborted by this process."""


@dataclass(frozen=True, kw_only=True)
class RolloutStatus:
    """One rollout service at one moment; counts since its process started."""

    num_groups_pushed: int
    """Groups pushed to the queue."""
    num_groups_dropped: dict[str, int]
    """Groups dropped before they were pushed, by reason."""
    num_samples_generated: int
    """Samples generated."""
    num_tokens_generated: int
    """Response tokens generated."""
    generation_seconds: float
    """Time the engine worked for the generation loop."""
    last_error: str
    """The last failure of the generation loop; empty when there was none."""


@dataclass(frozen=True, kw_only=True)
class ExampleReply:
    """One evaluated reply, for people to read."""

    prompt: str
    """The prompt."""
    response: str
    """The response, special tokens included."""
    label: str
    """The right answer."""
    reward: float
    """The grader's score."""


@dataclass(frozen=True, kw_only=True)
class PassRate:
    """pass@k: the chance that one of k responses to a prompt passes."""

    k: int
    """Responses tried."""
    rate: float
    """Unbiased estimate, mean over the prompts."""


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """Figures over held-out prompts."""

    step: int
    """Step of the version that generated."""
    num_prompts: int
    """Prompts evaluated."""
    samples_per_prompt: int
    """Responses to each."""
    mean_reward: float
    """Mean reward; the accuracy when rewards are 0 and 1."""
    pass_rates: tuple[PassRate, ...]
    """pass@k, by ascending k."""
    thinking_rate: float
    """Share of responses with a non-empty thought."""
    truncation_rate: float
    """Share of responses cut at the token limit."""
    mean_response_tokens: float
    """Mean response length, in tokens."""
    median_response_tokens: float
    """Median response length."""
    p90_response_tokens: int
    """Length that nine of ten responses do not exceed."""
    max_response_tokens: int
    """Longest response."""
    accept_length: float
    """Tokens per verify step; 0 without speculation."""
    examples: tuple[ExampleReply, ...]
    """The first replies."""


@dataclass(frozen=True, kw_only=True)
class StepReport:
    """The figures of one training step; one line of steps.jsonl. Field for field trainer.proto's StepReport."""

    step: int
    """The step, from 0; it turned version step into version step + 1."""
    mean_reward: float
    """Over all samples of the round, dropped groups included."""
    num_groups: int
    """Groups trained on."""
    num_samples: int
    """Samples trained on."""
    num_response_tokens: int
    """Response tokens trained on."""
    num_samples_left_out: dict[str, int]
    """Samples of the round's groups that were not trained on, by reason."""
    num_groups_dropped: dict[str, int]
    """Groups dropped for this round, by reason."""
    policy_loss: float
    """The policy loss as the recipe aggregates it, without KL and entropy terms."""
    mtp_loss: float
    """Mean loss of the MTP layer; 0 when it is not trained."""
    gradient_norm: float
    """Before clipping, mean over the updates."""
    clip_fraction: float
    """Share of response tokens whose surrogate was clipped."""
    logprob_mismatch_mean: float
    """Mean absolute difference between the trainer's and the engine's log-probabilities."""
    logprob_mismatch_max: float
    """Largest such difference."""
    importance_weight_mean: float
    """Mean importance weight."""
    importance_cut_fraction: float
    """Share of response tokens whose importance ratio was out of bounds."""
    rejected_token_fraction: float
    """Share of response tokens that were rejected before training."""
    sequence_masked_fraction: float
    """Share of response tokens that off-policy sequence masking left without a loss."""
    accept_length: float
    """Tokens per verify step of the trained samples; 0 without speculation."""
    thinking_rate: float
    """Share of trained samples with a non-empty thought."""
    mean_response_tokens: float
    """Mean response length, in tokens."""
    mean_lag_steps: float
    """Mean distance between the policy trained and a sample's oldest token."""
    max_lag_steps: int
    """Largest such distance."""
    wait_seconds: float
    """Waiting for groups."""
    train_seconds: float
    """Forward, backward and optimizer."""
    sync_seconds: float
    """From the start of publishing to the commit."""
    pause_seconds: float
    """Pause of the slowest engine."""
    is_committed: bool
    """The new version serves on all engines."""
    are_digests_equal: bool
    """Every engine's parameters have the trainer's digests."""
    held_out_accuracy: float | None
    """Held-out mean reward; None when this step was not evaluated."""
    queue_depth: int
    """Groups waiting in the queue after the step."""
    entropy: float
    """Mean entropy of the policy, in nats."""
    kl: float
    """Mean estimate of the divergence from the reference, in nats; 0 without a KL term."""
