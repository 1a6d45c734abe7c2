"""The losses as other systems run them: eager operations on padded [B, C] tensors, multiplied by a float mask.

They serve as the peer in time and, written apart from ours, as a check of value and gradient. The figures that such
systems log beside the loss are computed, too.

Legend: B sequences, C tokens of each.
"""

from dataclasses import dataclass

import torch

from services.trainer.bench.batch import BenchBatch


@dataclass(frozen=True, kw_only=True)
class PeerLoss:
    """One loss of theirs, with truncated importance weights."""

    ratio: str
    """token, sequence, sequence_token, or weight: a detached weight on log-probabilities."""
    clip_low: float
    """The ratio is clipped below at 1 - clip_low."""
    clip_high: float
    """The ratio is clipped above at 1 + clip_high."""
    aggregation: str
    """token_mean, sequence_mean or sequence_sum."""
    divisor_tokens: float
    """The constant of sequence_sum."""
    cap: float
    """Importance weights are cut here."""

    def run(self, batch: BenchBatch) -> torch.Tensor:
        """[] the loss, to be minimised."""
        shape = (batch.num_sequences, batch.num_columns)
        mask = batch.packed.loss_mask.view(shape).float()
        logprobs, old = batch.logprobs.view(shape), batch.old_logprobs.view(shape)
        advantages = batch.packed.advantages.view(shape)
        losses, is_clipped = self._losses(logprobs, old, advantages, mask)
        log_weights = (old - batch.packed.engine_logprobs.view(shape)).clamp(-20, 20)
        weights = log_weights.exp().clamp(max=self.cap)
        _log(is_clipped, batch.entropies.view(shape).detach(), weights, log_weights.abs(), mask)
        return self._aggregate(losses * weights, mask)

    def _losses(
        self, logprobs: torch.Tensor, old: torch.Tensor, advantages: torch.Tensor, mask: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        log_ratio = (logprobs - old).clamp(-20, 20)
        if self.ratio.startswith("sequence"):
            means = (log_ratio * mask).sum(dim=1, keepdim=True) / mask.sum(dim=1, keepdim=True).clamp(min=1)
            is_by_token = self.ratio == "sequence_token"
            log_ratio = means.detach() + log_ratio - log_ratio.detach() if is_by_token else means.expand_as(log_ratio)
        ratio = log_ratio.exp()
        clipped = ratio.clamp(1 - self.clip_low, 1 + self.clip_high)
        if self.ratio == "weight":
            return -clipped.detach() * advantages * logprobs, (clipped != ratio).float()
        first, second = -ratio * advantages, -clipped * advantages
        return torch.maximum(first, second), (second > first).float()

    def _aggregate(self, losses: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        if self.aggregation == "token_mean":
            return (losses * mask).sum() / mask.sum().clamp(min=1)
        if self.aggregation == "sequence_mean":
            return ((losses * mask).sum(dim=1) / mask.sum(dim=1).clamp(min=1)).mean()
        return ((losses * mask).sum(dim=1) / self.divisor_tokens).mean()


def _log(
    is_clipped: torch.Tensor,
    entropies: torch.Tensor,
    weights: torch.Tensor,
    mismatch: torch.Tensor,
    mask: torch.Tensor,
) -> list[float]:
    """The means over tokens that are logged with every micro-batch."""
    return [float((values * mask).sum() / mask.sum()) for values in (is_clipped, entropies, weights, mismatch)]
