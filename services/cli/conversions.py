"""Pure maps from the services' messages to the command's records."""

from furlong.rollout.v1 import rollout_pb2
from furlong.trainer.v1 import trainer_pb2

from services.cli.records import (
    Evaluation,
    ExampleReply,
    PassRate,
    RolloutStatus,
    StepReport,
    TrainerPhase,
    TrainerStatus,
)
from services.common.conversions import version_from_proto

_PHASES = {
    trainer_pb2.PHASE_UNSPECIFIED: TrainerPhase.STARTING,
    trainer_pb2.PHASE_STARTING: TrainerPhase.STARTING,
    trainer_pb2.PHASE_WARM_START: TrainerPhase.WARM_START,
    trainer_pb2.PHASE_PUBLISHING: TrainerPhase.PUBLISHING,
    trainer_pb2.PHASE_WAITING: TrainerPhase.WAITING,
    trainer_pb2.PHASE_TRAINING: TrainerPhase.TRAINING,
    trainer_pb2.PHASE_FAILED: TrainerPhase.FAILED,
}


def trainer_status_from_proto(message: trainer_pb2.GetStatusResponse) -> TrainerStatus:
    """The trainer's status."""
    version = version_from_proto(message.version)
    return TrainerStatus(
        phase=_PHASES.get(message.phase, TrainerPhase.STARTING),
        committed_step=version.step if version else None,
        warm_start_step=message.warm_start_step,
        num_warm_start_steps=message.num_warm_start_steps,
        warm_start_seconds=message.warm_start_seconds,
        last_error=message.last_error,
        num_versions_aborted=message.num_versions_aborted,
    )


def rollout_status_from_proto(message: rollout_pb2.GetStatusResponse) -> RolloutStatus:
    """A rollout service's status."""
    return RolloutStatus(
        num_groups_pushed=message.num_groups_pushed,
        num_groups_dropped=dict(message.num_groups_dropped),
        num_samples_generated=message.num_samples_generated,
        num_tokens_generated=message.num_tokens_generated,
        generation_seconds=message.generation_seconds,
        last_error=message.last_error,
    )


def evaluation_from_proto(message: rollout_pb2.EvaluateResponse) -> Evaluation:
    """The figures of an evaluation."""
    return Evaluation(
        step=message.version.step,
        num_prompts=message.num_prompts,
        samples_per_prompt=message.samples_per_prompt,
        mean_reward=message.mean_reward,
        pass_rates=tuple(PassRate(k=item.k, rate=item.rate) for item in message.pass_rates),
        thinking_rate=message.thinking_rate,
        truncation_rate=message.truncation_rate,
        mean_response_tokens=message.mean_response_tokens,
        median_response_tokens=message.median_response_tokens,
        p90_response_tokens=message.p90_response_tokens,
        max_response_tokens=message.max_response_tokens,
        accept_length=message.accept_length,
        examples=tuple(
            ExampleReply(prompt=e.prompt, response=e.response, label=e.label, reward=e.reward) for e in message.examples
        ),
    )


def step_report_from_proto(message: trainer_pb2.StepReport) -> StepReport:
    """The report of a step."""
    has_accuracy = message.HasField("held_out_accuracy")
    return StepReport(
        step=message.step,
        mean_reward=message.mean_reward,
        num_groups=message.num_groups,
        num_samples=message.num_samples,
        num_response_tokens=message.num_response_tokens,
        num_samples_left_out=dict(message.num_samples_left_out),
        num_groups_dropped=dict(message.num_groups_dropped),
        policy_loss=message.policy_loss,
        mtp_loss=message.mtp_loss,
        gradient_norm=message.gradient_norm,
        clip_fraction=message.clip_fraction,
        logprob_mismatch_mean=message.logprob_mismatch_mean,
        logprob_mismatch_max=message.logprob_mismatch_max,
        importance_weight_mean=message.importance_weight_mean,
        accept_length=message.accept_length,
        thinking_rate=message.thinking_rate,
        mean_response_tokens=message.mean_response_tokens,
        mean_lag_steps=message.mean_lag_steps,
        max_lag_steps=message.max_lag_steps,
        wait_seconds=message.wait_seconds,
        train_seconds=message.train_seconds,
        sync_seconds=message.sync_seconds,
        pause_seconds=message.pause_seconds,
        is_committed=message.is_committed,
        are_digests_equal=message.are_digests_equal,
        held_out_accuracy=message.held_out_accuracy if has_accuracy else None,
        queue_depth=message.queue_depth,
        importance_cut_fraction=message.importance_cut_fraction,
        rejected_token_fraction=message.rejected_token_fraction,
        sequence_masked_fraction=message.sequence_masked_fraction,
        entropy=message.entropy,
        kl=message.kl,
    )
