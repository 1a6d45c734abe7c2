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
    """([T] log-probability of each label, [T] entropy in nats), both with gradient, in float32.

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
        entropies = log_total - expectation / total
        ctx.save_for_backward(weights, local, is_here, entropies)
        ctx.temperature, ctx.dtype = temperature, logits.dtype  # type: ignore[attr-defined]
        # A loss without an entropy term shall not pay for one.
        ctx.set_materialize_grads(False)
        return label_logits - log_total, entropies

    @staticmethod
    def backward(
        ctx: torch.autograd.function.FunctionCtx,
        grad_logprobs: torch.Tensor | None,
        grad_entropies: torch.Tensor | None,
    ) -> tuple[torch.Tensor | None, ...]:
        probabilities, local, is_here, entropies = ctx.saved_tensors  # type: ignore[attr-defined]
        temperature: float = ctx.temperature  # type: ignore[attr-defined]
        if grad_logprobs is None:
            gradient = torch.zeros_like(probabilities)
        else:
            scaled = grad_logprobs / temperature
            gradient = probabilities * -scaled[:, None]
            gradient.scatter_add_(1, local[:, None], torch.where(is_here, scaled, 0.0)[:, None])
        if grad_entropies is not None:
            slopes = _entropy_slopes(probabilities, entropies)
            gradient.addcmul_(slopes, (grad_entropies / temperature)[:, None], value=-1)
        return gradient.to(ctx.dtype), None, None, None, None  # type: ignore[attr-defined]


def _entropy_slopes(probabilities: torch.Tensor, entropies: torch.Tensor) -> torch.Tensor:
    """[T, V] p (log p + H), the negative derivative of the entropy by each logit; 0 where p is 0, as in the limit."""
    # Entries of the padding have p = 0, and 0 * -inf would be no number.
    return torch.xlogy(probabilities, probabilities).addcmul_(probabilities, entropies[:, None])


def _reduced(
    values: torch.Tensor, operation: distributed.ReduceOp.RedOpType, group: distributed.ProcessGroup
) -> torch.Tensor:
    if group.size() > 1:
        distributed.all_reduce(values, op=operation, group=group)
    return values
