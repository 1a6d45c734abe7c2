"""Which tokens of a micro-batch are trained on, from log-probabilities taken before the step's first update. Pure.

Legend: T tokens of a micro-batch.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from services.common.config.algorithm import RejectionConfig
from services.trainer.algorithms.aggregation import token_count
from services.trainer.algorithms.importance import level_ratios
from services.trainer.algorithms.rejection import (
    num_sequences_lost,
    without_outliers,
    without_undefined,
    without_vetoed,
)
from services.trainer.batch import PackedBatch

UNDEFINED_LOGPROBS = "undefined_logprobs"
"""A log-probability of the engine, the trainer or the reference is no number or infinite."""
VETO = "veto"
"""A token that the trainer would all but never have drawn."""
MISMATCH = "mismatch"
"""Every token, or the sequence as a whole, was outside the rejection bounds."""
REASONS = (UNDEFINED_LOGPROBS, VETO, MISMATCH)


@dataclass(frozen=True, kw_only=True)
class ScreenedBatch:
    """What is left of a micro-batch."""

    defined: torch.Tensor
    """[T] bool: tokens whose log-probabilities are numbers; the mismatch is measured on these."""
    mask: torch.Tensor
    """[T] bool: tokens to train on, a part of defined."""
    num_samples_rejected: Mapping[str, float]
    """Sequences that lost all their tokens, by each of REASONS; a sequence counts once."""
    num_tokens_rejected: int
    """Tokens taken out, for whatever reason."""


def screen(
    batch: PackedBatch,
    old_logprobs: torch.Tensor,
    reference_logprobs: torch.Tensor | None,
    rejection: RejectionConfig,
) -> ScreenedBatch:
    """The tokens that pass all rules, tested in the order of REASONS.

    Args:
        old_logprobs: [T] under the trainer.
        reference_logprobs: [T] under the reference, if the recipe has one.
    """
    sequences, engine = batch.sequences, batch.engine_logprobs
    everything = old_logprobs + engine if reference_logprobs is None else old_logprobs + engine + reference_logprobs
    defined = without_undefined(everything, batch.loss_mask, sequences)
    kept = defined
    if rejection.veto:
        kept = without_vetoed(old_logprobs, engine, defined, sequences, threshold=rejection.veto)
    mask = kept
    if rejection.level != "off":
        ratios = level_ratios(rejection.level, old_logprobs, engine, kept, sequences)
        mask = without_outliers(ratios, kept, lower=rejection.lower, upper=rejection.upper)
    stages = zip(REASONS, (batch.loss_mask, defined, kept), (defined, kept, mask), strict=True)
    return ScreenedBatch(
        defined=defined,
        mask=mask,
        num_samples_rejected={reason: num_sequences_lost(before, after, sequences) for reason, before, after in stages},
        num_tokens_rejected=token_count(batch.loss_mask) - token_count(mask),
    )
