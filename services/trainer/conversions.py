"""Pure maps between the trainer's records and its messages."""

from pathlib import Path

from furlong.trainer.v1 import orders_pb2, trainer_pb2

from services.common.conversions import group_from_proto, group_to_proto, version_to_proto
from services.common.errors import InvalidInputError
from services.trainer.orders import (
    FillBuffer,
    KeepBuffer,
    KeepReference,
    LoadPolicy,
    OfferShards,
    RankOrder,
    RankReply,
    ResetOptimizer,
    SavePolicy,
    StopRank,
    TrainRound,
    WarmStartStep,
)
from services.trainer.reports import Phase, Status, StepReport
from services.weights.conversions import (
    source_buffer_from_proto,
    source_buffer_to_proto,
    source_rank_offer_from_proto,
    source_rank_offer_to_proto,
    source_rank_plan_from_proto,
    source_rank_plan_to_proto,
)

_PHASES = {
    Phase.STARTING: trainer_pb2.PHASE_STARTING,
    Phase.WARM_START: trainer_pb2.PHASE_WARM_START,
    Phase.PUBLISHING: trainer_pb2.PHASE_PUBLISHING,
    Phase.WAITING: trainer_pb2.PHASE_WAITING,
    Phase.TRAINING: trainer_pb2.PHASE_TRAINING,
    Phase.FAILED: trainer_pb2.PHASE_FAILED,
}


def report_to_proto(report: StepReport) -> trainer_pb2.StepReport:
    """The message of a step's report."""
    round_, update, publish = report.round, report.update, report.publish
    message = trainer_pb2.StepReport(
        step=report.step,
        mean_reward=round_.mean_reward,
        num_groups=round_.num_groups,
        num_samples=round_.num_samples,
        num_response_tokens=round_.num_response_tokens,
        num_groups_dropped=round_.num_groups_dropped,
        num_samples_left_out=round_.num_samples_left_out,
        accept_length=round_.accept_length,
        thinking_rate=round_.thinking_rate,
        mean_response_tokens=round_.mean_response_tokens,
        mean_lag_steps=round_.mean_lag_steps,
        max_lag_steps=round_.max_lag_steps,
        policy_loss=update.policy_loss,
        mtp_loss=update.mtp_loss,
        gradient_norm=update.gradient_norm,
        clip_fraction=update.clip_fraction,
        logprob_mismatch_mean=update.logprob_mismatch_mean,
        logprob_mismatch_max=update.logprob_mismatch_max,
        importance_weight_mean=update.importance_weight_mean,
        importance_cut_fraction=update.importance_cut_fraction,
        rejected_token_fraction=update.rejected_token_fraction,
        sequence_masked_fraction=update.sequence_masked_fraction,
        entropy=update.entropy,
        kl=update.kl,
        wait_seconds=report.wait_seconds,
        train_seconds=report.train_seconds,
        sync_seconds=publish.sync_seconds,
        pause_seconds=publish.pause_seconds,
        is_committed=publish.is_committed,
        are_digests_equal=publish.are_digests_equal,
        queue_depth=report.queue_depth,
    )
    if report.held_out_accuracy is not None:
        message.held_out_accuracy = report.held_out_accuracy
    return message


def status_to_proto(status: Status) -> trainer_pb2.GetStatusResponse:
    """The reply of GetStatus."""
    return trainer_pb2.GetStatusResponse(
        phase=_PHASES[status.phase],
        version=version_to_proto(status.version) if status.version else None,
        target_step=status.target_step,
        warm_start_step=status.warm_start_step,
        num_warm_start_steps=status.num_warm_start_steps,
        warm_start_seconds=status.warm_start_seconds,
        last_error=status.last_error,
        checkpoint_path=status.checkpoint_path,
        num_versions_committed=status.num_versions_committed,
        num_versions_aborted=status.num_versions_aborted,
    )


def order_to_bytes(order: RankOrder) -> bytes:
    """The order as bytes for the other ranks."""
    return _order_message(order).SerializeToString()


def order_from_bytes(data: bytes) -> RankOrder:
    """The order of rank 0's bytes."""
    message = orders_pb2.RankOrder.FromString(data)
    match work := message.WhichOneof("work"):
        case "train_round":
            round_ = message.train_round
            return TrainRound(step=round_.step, groups=tuple(group_from_proto(group) for group in round_.groups))
        case "warm_start_step":
            return WarmStartStep(step=message.warm_start_step.step)
        case "fill_buffer":
            return FillBuffer(plans=tuple(source_rank_plan_from_proto(plan) for plan in message.fill_buffer.ranks))
        case "save_policy":
            save = message.save_policy
            return SavePolicy(folder=Path(save.folder), with_optimizer=save.with_optimizer)
        case "load_policy":
            load = message.load_policy
            return LoadPolicy(folder=Path(load.folder), with_optimizer=load.with_optimizer)
        case "offer_shards":
            return OfferShards()
        case "keep_buffer":
            return KeepBuffer()
        case "reset_optimizer":
            return ResetOptimizer()
        case "keep_reference":
            return KeepReference()
        case "stop_rank":
            return StopRank()
    raise InvalidInputError(f"an order names the work {work!r}; run all trainer ranks from one installation")


def reply_to_bytes(reply: RankReply) -> bytes:
    """The reply as bytes for rank 0."""
    message = orders_pb2.RankReply(figures=reply.figures)
    if reply.offer is not None:
        message.offer.CopyFrom(source_rank_offer_to_proto(reply.offer))
    if reply.buffer is not None:
        message.buffer.CopyFrom(source_buffer_to_proto(reply.buffer))
    return message.SerializeToString()


def reply_from_bytes(data: bytes) -> RankReply:
    """The reply of a rank's bytes."""
    message = orders_pb2.RankReply.FromString(data)
    return RankReply(
        offer=source_rank_offer_from_proto(message.offer) if message.HasField("offer") else None,
        buffer=source_buffer_from_proto(message.buffer) if message.HasField("buffer") else None,
        figures=dict(message.figures),
    )


def _order_message(order: RankOrder) -> orders_pb2.RankOrder:
    match order:
        case TrainRound(step=step, groups=groups):
            messages = [group_to_proto(group) for group in groups]
            return orders_pb2.RankOrder(train_round=orders_pb2.TrainRound(step=step, groups=messages))
        case WarmStartStep(step=step):
            return orders_pb2.RankOrder(warm_start_step=orders_pb2.WarmStartStep(step=step))
        case FillBuffer(plans=plans):
            ranks = [source_rank_plan_to_proto(plan) for plan in plans]
            return orders_pb2.RankOrder(fill_buffer=orders_pb2.FillBuffer(ranks=ranks))
        case SavePolicy(folder=folder, with_optimizer=with_optimizer):
            save = orders_pb2.SavePolicy(folder=str(folder), with_optimizer=with_optimizer)
            return orders_pb2.RankOrder(save_policy=save)
        case LoadPolicy(folder=folder, with_optimizer=with_optimizer):
            load = orders_pb2.LoadPolicy(folder=str(folder), with_optimizer=with_optimizer)
            return orders_pb2.RankOrder(load_policy=load)
        case OfferShards():
            return orders_pb2.RankOrder(offer_shards=orders_pb2.OfferShards())
        case KeepBuffer():
            return orders_pb2.RankOrder(keep_buffer=orders_pb2.KeepBuffer())
        case ResetOptimizer():
            return orders_pb2.RankOrder(reset_optimizer=orders_pb2.ResetOptimizer())
        case KeepReference():
            return orders_pb2.RankOrder(keep_reference=orders_pb2.KeepReference())
        case StopRank():
            return orders_pb2.RankOrder(stop_rank=orders_pb2.StopRank())
