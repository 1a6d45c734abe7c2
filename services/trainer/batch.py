"""A packed micro-batch: sequences laid end to end with the targets and loss inputs of every position.

Legend: T tokens of the micro-batch, N sequences. Position t predicts `labels[t]`, the token after it in its own
sequence; every loss input is aligned to labels. The last position of a sequence has no label and is masked.
"""

from dataclasses import dataclass, replace

import torch

from services.trainer.algorithms.sequences import Sequences


@dataclass(frozen=True, kw_only=True)
class PackedBatch:
    """One micro-batch of one data-parallel rank."""

    token_ids: torch.Tensor
    """[T] int64."""
    labels: torch.Tensor
    """[T] int64; 0 where masked."""
    position_ids: torch.Tensor
    """[T] int64, from 0 in each sequence."""
    cu_seqlens: torch.Tensor
    """[N + 1] int32 offsets of the sequences."""
    loss_mask: torch.Tensor
    """[T] bool: the label is a response token that counts."""
    advantages: torch.Tensor
    """[T] float32; 0 where masked."""
    engine_logprobs: torch.Tensor
    """[T] float32 log-probabilities of the labels under the engine; 0 where masked."""
    sample_indices: tuple[int, ...]
    """[N] index of each sequence in the round's list of samples."""

    def to(self, device: torch.device) -> "PackedBatch":
        """The micro-batch with its tensors on a device."""
        return replace(
            self,
            token_ids=self.token_ids.to(device),
            labels=self.labels.to(device),
            position_ids=self.position_ids.to(device),
            cu_seqlens=self.cu_seqlens.to(device),
            loss_mask=self.loss_mask.to(device),
            advantages=self.advantages.to(device),
            engine_logprobs=self.engine_logprobs.to(device),
        )

    @property
    def num_tokens(self) -> int:
        """T."""
        return self.token_ids.numel()

    @property
    def num_sequences(self) -> int:
        """N."""
        return self.cu_seqlens.numel() - 1

    @property
    def sequences(self) -> Sequences:
        """Which tokens belong together."""
        return Sequences(cu_seqlens=self.cu_seqlens)

    @property
    def num_loss_tokens(self) -> int:
        """Labels that count."""
        return int(self.loss_mask.sum())
