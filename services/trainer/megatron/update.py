"""One optimizer step over the micro-batches of all ranks, and the statistics of micro-batches without one."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from megatron.core import parallel_state
from megatron.core.distributed import finalize_model_grads
from torch import distributed

from services.trainer.batch import PackedBatch
from services.trainer.megatron.forward import PackedInputs, pack_inputs, trunk_hidden, trunk_statistics
from services.trainer.megatron.model import RankModel
from services.trainer.megatron.mtp import count_mtp_labels, mtp_loss_sum
from services.trainer.megatron.optimizer import PartOptimizer
from services.trainer.megatron.process_groups import sum_over_replicas
from services.trainer.policy import LossFunction, TokenStatistics, UpdateFigures


@dataclass(frozen=True, kw_only=True)
class ForwardSettings:
    """What the forward passes need besides the model."""

    temperature: float
    """The sampling temperature; log-probabilities and entropies are taken at it."""
    vocab_size: int
    """Vocabulary entries without padding."""
    tp_size: int
    """Tensor-parallel ranks."""
    device: torch.device
    """Device of this rank."""
    mtp_loss_scale: float
    """Weight of the MTP loss; 0 does not train the MTP layer."""


@dataclass(frozen=True, kw_only=True)
class LearningRates:
    """The optimizer settings of one step."""

    trunk: float
    """Learning rate of the trunk."""
    mtp: float
    """Learning rate of the MTP layer."""
    weight_decay: float
    """Decoupled weight decay of matrices."""


@torch.no_grad()
def run_statistics(
    model: RankModel, batches: Sequence[PackedBatch], settings: ForwardSettings
) -> list[TokenStatistics]:
    """Collective. Statistics of each micro-batch, without gradient."""
    results = []
    for batch in batches:
        inputs = pack_inputs(batch, model.trunk, tp_size=settings.tp_size, device=settings.device)
        results.append(_statistics(model, trunk_hidden(model.trunk, inputs), inputs, settings))
    return results


def run_update(
    model: RankModel,
    optimizers: Sequence[PartOptimizer],
    batches: Sequence[PackedBatch],
    loss_function: LossFunction,
    settings: ForwardSettings,
    *,
    global_count: float,
    rates: LearningRates,
) -> UpdateFigures:
    """Collective. One optimizer step; see Policy.update.

    Args:
        optimizers: of the trunk, and of the MTP block when there is one.
    """
    for part, optimizer in zip(model.parts, optimizers, strict=True):
        part.gradients.zero_grad_buffer()
        optimizer.zero_gradients()
    num_mtp_labels = _global_mtp_labels(batches, settings) if model.mtp is not None else 0.0
    sums: dict[str, float] = defaultdict(float)
    for index, batch in enumerate(batches):
        metric_sums = _accumulate(
            model,
            batch,
            index,
            loss_function,
            settings,
            global_count=global_count,
            num_mtp_labels=num_mtp_labels,
        )
        for name, value in metric_sums.items():
            sums[name] += value
    finalize_model_grads([part.gradients for part in model.parts])
    trained = optimizers if num_mtp_labels else optimizers[:1]
    # All norms before any step, so that an undefined one leaves every parameter as it was.
    norms = [optimizer.clip() for optimizer in trained]
    for optimizer, lr in zip(trained, (rates.trunk, rates.mtp), strict=False):
        optimizer.step(lr=lr, weight_decay=rates.weight_decay)
    totals = sum_over_replicas(sums, device=settings.device)
    mtp_loss = totals.pop(_MTP_LOSS) / num_mtp_labels if num_mtp_labels else 0.0
    return UpdateFigures(gradient_norm=norms[0], mtp_loss=mtp_loss, metric_sums=totals)


# No metric of a loss function has this name.
_MTP_LOSS = "\0mtp_loss"


def _accumulate(
    model: RankModel,
    batch: PackedBatch,
    index: int,
    loss_function: LossFunction,
    settings: ForwardSettings,
    *,
    global_count: float,
    num_mtp_labels: float,
) -> dict[str, float]:
    """Adds the gradients of one micro-batch to the buffers and returns its metric sums.

    Here, and nowhere else, the losses are divided by their global counts. Megatron then only adds gradients: over
    micro-batches in the buffers, and over data-parallel ranks in finalize_model_grads (calculate_per_token_loss).
    """
    inputs = pack_inputs(batch, model.trunk, tp_size=settings.tp_size, device=settings.device)
    hidden = trunk_hidden(model.trunk, inputs)
    sums = loss_function(_statistics(model, hidden, inputs, settings), batch, index)
    loss = sums.loss_sum / global_count
    metric_sums = dict(sums.metric_sums)
    if num_mtp_labels and model.mtp is not None:
        mtp_sum = mtp_loss_sum(model.mtp, model.trunk, hidden, inputs, vocab_size=settings.vocab_size)
        loss = loss + mtp_sum * (settings.mtp_loss_scale / num_mtp_labels)
        metric_sums[_MTP_LOSS] = float(mtp_sum.detach())
    loss.backward()  # type: ignore[no-untyped-call]
    return metric_sums


def _statistics(
    model: RankModel, hidden: torch.Tensor, inputs: PackedInputs, settings: ForwardSettings
) -> TokenStatistics:
    return trunk_statistics(
        model.trunk, hidden, inputs, temperature=settings.temperature, vocab_size=settings.vocab_size
    )


def _global_mtp_labels(batches: Sequence[PackedBatch], settings: ForwardSettings) -> float:
    """Labels of the MTP loss over all micro-batches of all replicas; 0 when the layer is not trained."""
    if not settings.mtp_loss_scale:
        return 0.0
    count = torch.tensor(
        [sum(count_mtp_labels(batch) for batch in batches)], dtype=torch.float64, device=settings.device
    )
    distributed.all_reduce(count, group=parallel_state.get_data_parallel_group())
    return float(count)
