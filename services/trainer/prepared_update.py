"""An optimizer step before it is taken, and the figures that are fixed then. Pure.

Legend: T tokens of a micro-batch.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from services.trainer.algorithms.aggregation import aggregation_count, token_count
from services.trainer.algorithms.importance import absolute_mismatch
from services.trainer.batch import PackedBatch
from services.trainer.screening import REASONS, ScreenedBatch


@dataclass(frozen=True, kw_only=True)
class PreparedBatch:
    """A micro-batch with all that its loss needs besides the policy."""

    batch: PackedBatch
    """Its loss_mask has the tokens to train on, its advantages are final."""
    old_logprobs: torch.Tensor
    """[T] under the trainer before the round's first update."""
    reference_logprobs: torch.Tensor | None
    """[T] under the reference; None without a KL term."""
    importance_weights: torch.Tensor
    """[T] weight of each token's policy loss; 0 where masked."""
    is_cut: torch.Tensor
    """[T] bool: the importance ratio was out of bounds."""
    aggregation_weights: torch.Tensor
    """[T] weight of each token in the step's loss; 0 where masked."""


@dataclass(frozen=True, kw_only=True)
class PreparedUpdate:
    """One optimizer step."""

    batches: list[PreparedBatch]
    """This rank's micro-batches."""
    global_count: float
    """What the sum of the losses over all ranks is divided by; 0 when every token was rejected."""
    figures: Mapping[str, float]
    """Those of local_sums over all ranks, global_count apart."""
    max_mismatch: float
    """Largest |log p_trainer - log p_engine| of this rank's tokens in nats, rejected ones included."""


def local_sums(
    batches: Sequence[PreparedBatch], screened: Sequence[ScreenedBatch], *, aggregation: str
) -> dict[str, float]:
    """This rank's part of what is known of an update before it is taken.

    global_count by the aggregation; num_tokens to train on and num_tokens_rejected; the samples rejected, by reason
    under rejected_name; and, each a mean when divided by num_tokens, importance_weight, importance_cut and
    logprob_mismatch.

    Args:
        screened: of the batches, in their order.
    """
    packed = [item.batch for item in batches]
    counts = [aggregation_count(aggregation, batch.loss_mask, batch.sequences) for batch in packed]
    mismatches = [
        absolute_mismatch(item.old_logprobs, item.batch.engine_logprobs, item.batch.loss_mask) for item in batches
    ]
    return {
        "global_count": sum(counts),
        "num_tokens": float(sum(token_count(batch.loss_mask) for batch in packed)),
        "num_tokens_rejected": float(sum(item.num_tokens_rejected for item in screened)),
        "importance_weight": _total([item.importance_weights for item in batches]),
        "importance_cut": _total([item.is_cut for item in batches]),
        "logprob_mismatch": _total(mismatches),
        **{rejected_name(reason): sum(item.num_samples_rejected[reason] for item in screened) for reason in REASONS},
    }


def largest_mismatch(batches: Sequence[PreparedBatch], screened: Sequence[ScreenedBatch]) -> float:
    """The largest |log p_trainer - log p_engine| in nats, over every token whose log-probabilities are numbers.

    Args:
        screened: of the batches, in their order.
    """
    pairs = zip(batches, screened, strict=True)
    mismatches = (
        absolute_mismatch(item.old_logprobs, item.batch.engine_logprobs, seen.defined) for item, seen in pairs
    )
    return max((float(mismatch.max()) for mismatch in mismatches), default=0.0)


def rejected_name(reason: str) -> str:
    """The figure that counts the samples rejected for a reason."""
    return f"num_samples_rejected/{reason}"


def _total(tensors: Sequence[torch.Tensor]) -> float:
    return sum(float(tensor.sum(dtype=torch.float64)) for tensor in tensors)
