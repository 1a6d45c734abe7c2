"""Records with plain values for the command's tests."""

from services.cli.records import (
    Evaluation,
    ExampleReply,
    PassRate,
    RolloutStatus,
    StepReport,
    TrainerPhase,
    TrainerStatus,
)


def make_report(
    step: int,
    *,
    mean_reward: float = 0.5,
    num_samples: int = 256,
    num_response_tokens: int = 2000,
    num_groups_dropped: dict[str, int] | None = None,
    num_samples_left_out: dict[str, int] | None = None,
    logprob_mismatch_mean: float = 1e-7,
    logprob_mismatch_max: float = 1e-6,
    accept_length: float = 1.7,
    sync_seconds: float = 0.5,
    pause_seconds: float = 0.01,
    is_committed: bool = True,
    are_digests_equal: bool = True,
    held_out_accuracy: float | None = None,
) -> StepReport:
    return StepReport(
        step=step,
        mean_reward=mean_reward,
        num_groups=num_samples // 8,
        num_samples=num_samples,
        num_response_tokens=num_response_tokens,
        num_samples_left_out=num_samples_left_out or {},
        num_groups_dropped=num_groups_dropped or {},
        policy_loss=0.1,
        mtp_loss=0.2,
        gradient_norm=0.3,
        clip_fraction=0.01,
        logprob_mismatch_mean=logprob_mismatch_mean,
        logprob_mismatch_max=logprob_mismatch_max,
        importance_weight_mean=1.0,
        accept_length=accept_length,
        thinking_rate=0.6,
        mean_response_tokens=8.5,
        mean_lag_steps=0.0,
        max_lag_steps=0,
        wait_seconds=1.0,
        train_seconds=2.0,
        sync_seconds=sync_seconds,
        pause_seconds=pause_seconds,
        is_committed=is_committed,
        are_digests_equal=are_digests_equal,
        held_out_accuracy=held_out_accuracy,
        queue_depth=32,
        importance_cut_fraction=0.0,
        rejected_token_fraction=0.0,
        sequence_masked_fraction=0.0,
        entropy=0.4,
        kl=0.0,
    )


def make_evaluation(
    mean_reward: float, *, step: int = 0, num_prompts: int = 2009, thinking_rate: float = 0.5
) -> Evaluation:
    return Evaluation(
        step=step,
        num_prompts=num_prompts,
        samples_per_prompt=1,
        mean_reward=mean_reward,
        pass_rates=(PassRate(k=1, rate=mean_reward),),
        thinking_rate=thinking_rate,
        truncation_rate=0.125,
        mean_response_tokens=8.0,
        median_response_tokens=7.5,
        p90_response_tokens=12,
        max_response_tokens=16,
        accept_length=1.6,
        examples=(ExampleReply(prompt="47+85", response="\\boxed{132}", label="132", reward=1.0),),
    )


def make_rollout_status(
    *, num_groups_pushed: int = 0, num_groups_dropped: dict[str, int] | None = None
) -> RolloutStatus:
    return RolloutStatus(
        num_groups_pushed=num_groups_pushed,
        num_groups_dropped=num_groups_dropped or {},
        num_samples_generated=8 * num_groups_pushed,
        num_tokens_generated=6000,
        generation_seconds=12.0,
        last_error="",
    )


def make_trainer_status(*, committed: int = 3, aborted: int = 0) -> TrainerStatus:
    return TrainerStatus(
        phase=TrainerPhase.WAITING,
        committed_step=committed,
        warm_start_step=950,
        num_warm_start_steps=950,
        warm_start_seconds=55.0,
        last_error="",
        num_versions_aborted=aborted,
    )
