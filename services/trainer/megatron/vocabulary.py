"""Log-probabilities of labels and entropies over a vocabulary that is split over ranks.

Legend: T tokens, V vocabulary entries on this rank, including padding of the last ranks.
"""

import torch
from torch import distributed


def label_statistics(
    logits: torch.Tensor,
    labels: torch.Tensor,
    *,
    temperature: float,
    vocab_size: int,
    group: distributed.ProcessGroup,
) -> tuple[torch.Tensor, torch.Tensor]:
    """([T] log-probability of each label, [T] entropy in nats without gradient), in float32.

    Both are of softmax(logits / temperature). The logits are not changed.

    Args:
        logits: [T, V].
        labels: [T] int64, the same on all ranks of the group.
        vocab_size: entries of the whole vocabulary without padding.
        group: the ranks that share the vocabulary, in order.
    """
    statistics: tuple[torch.Tensor, torch.Tensor] = _LabelStatistics.apply(  # type: ignore[no-untyped-call]
        logits, labels, temperature, vocab_size, group
    )
    return statistics


class _LabelStatistics(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: torch.autograd.function.FunctionCtx,
        logits: torch.Tensor,
        labels: torch.Tensor,
        temperature: float,
        vocab_size: int,
        group: distributed.ProcessGroup,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        first = group.rank() * logits.shape[1]
        scaled = logits.float() / temperature
        if first + logits.shape[1] > vocab_size:
            scaled[:, max(vocab_size - first, 0) :] = float("-inf")
        highest = _reduced(scaled.amax(dim=-1), distributed.ReduceOp.MAX, group)
        scaled -= highest[:, None]
        local = labels - first
        is_here = (local >= 0) & (local < logits.shape[1])
        local = torch.where(is_here, local, 0)
        label_logits = torch.where(is_here, scaled.gather(1, local[:, None]).squeeze(1), 0.0)
        weights = scaled.exp()
        # Where the weight is 0 the product would be 0 * -inf in the padding.
        expectation = (weights * torch.where(weights > 0, scaled, 0.0)).sum(dim=-1)
        sums = _reduced(torch.stack([weights.sum(dim=-1), expectation, label_logits]), distributed.ReduceOp.SUM, group)
        total, expectation, label_logits = sums
        log_total = total.log()
        weights /= total[:, None]
        ctx.save_for_backward(weights, local, is_here)
        ctx.temperature, ctx.dtype = temperature, logits.dtype  # type: ignore[attr-defined]
        entropies = log_total - expectation / total
        ctx.mark_non_differentiable(entropies)
        return label_logits - log_total, entropies

    @staticmethod
    def backward(
        ctx: torch.autograd.function.FunctionCtx, grad_logprobs: torch.Tensor, _grad_entropies: torch.Tensor
    ) -> tuple[torch.Tensor | None, ...]:
        probabilities, local, is_here = ctx.saved_tensors  # type: ignore[attr-defined]
        scaled = grad_logprobs / ctx.temperature  # type: ignore[attr-defined]
        gradient = probabilities * -scaled[:, None]
        gradient.scatter_add_(1, local[:, None], torch.where(is_here, scaled, 0.0)[:, None])
        return gradient.to(ctx.dtype), None, None, None, None  # type: ignore[attr-defined]


def _reduced(
    values: torch.Tensor, operation: distributed.ReduceOp.RedOpType, group: distributed.ProcessGroup
) -> torch.Tensor:
    if group.size() > 1:
        distributed.all_reduce(values, op=operation, group=group)
    return values
