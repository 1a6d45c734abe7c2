"""Packed micro-batches and losses for the rank tests."""

from collections.abc import Sequence

import torch

from services.trainer.batch import PackedBatch
from services.trainer.policy import LossSums, TokenStatistics

PROMPT_TOKENS = 5


def make_batch(lengths: Sequence[int], *, seed: int) -> PackedBatch:
    """Random sequences; the labels after the prompt count, the others are masked."""
    generator = torch.Generator().manual_seed(seed)
    parts = [torch.randint(0, 64, (length,), generator=generator) for length in lengths]
    masks = [(torch.arange(length) >= PROMPT_TOKENS - 1) & (torch.arange(length) < length - 1) for length in lengths]
    loss_mask = torch.cat(masks)
    num_tokens = sum(lengths)
    return PackedBatch(
        token_ids=torch.cat(parts),
        labels=torch.where(loss_mask, torch.cat([part.roll(-1) for part in parts]), 0),
        position_ids=torch.cat([torch.arange(length) for length in lengths]),
        cu_seqlens=torch.tensor([0, *lengths]).cumsum(0).to(torch.int32),
        loss_mask=loss_mask,
        advantages=torch.where(loss_mask, torch.randn(num_tokens, generator=generator), 0.0),
        engine_logprobs=torch.zeros(num_tokens),
        sample_indices=tuple(range(len(lengths))),
    )


def take_sequences(batch: PackedBatch, indices: Sequence[int]) -> PackedBatch:
    """A micro-batch of some of the sequences."""
    offsets = batch.cu_seqlens.tolist()
    places = torch.cat([torch.arange(offsets[index], offsets[index + 1]) for index in indices])
    lengths = [offsets[index + 1] - offsets[index] for index in indices]
    return PackedBatch(
        token_ids=batch.token_ids[places],
        labels=batch.labels[places],
        position_ids=batch.position_ids[places],
        cu_seqlens=torch.tensor([0, *lengths]).cumsum(0).to(torch.int32),
        loss_mask=batch.loss_mask[places],
        advantages=batch.advantages[places],
        engine_logprobs=batch.engine_logprobs[places],
        sample_indices=tuple(indices),
    )


def without_labels(batch: PackedBatch) -> PackedBatch:
    """The same tokens with nothing to learn: a zero-weight micro-batch."""
    return PackedBatch(
        token_ids=batch.token_ids,
        labels=torch.zeros_like(batch.labels),
        position_ids=batch.position_ids,
        cu_seqlens=batch.cu_seqlens,
        loss_mask=torch.zeros_like(batch.loss_mask),
        advantages=torch.zeros_like(batch.advantages),
        engine_logprobs=batch.engine_logprobs,
        sample_indices=batch.sample_indices,
    )


def weighted_loss(statistics: TokenStatistics, batch: PackedBatch, index: int) -> LossSums:
    """-sum(advantage * logprob)."""
    loss = -torch.where(batch.loss_mask, statistics.logprobs * batch.advantages, 0.0).sum()
    return LossSums(loss_sum=loss, metric_sums={"loss": float(loss.detach()), "micro_batches": 1.0})
