"""The gated feed-forward network of all local experts as one differentiable step. Pure torch.

Legend: M rows (token copies) sorted by expert, E experts, H hidden size, F inner width of an expert on this rank.
"""

from collections.abc import Sequence

import torch
from torch.nn import functional


def grouped_gated_mlp(
    hidden: torch.Tensor,
    probs: torch.Tensor,
    *,
    counts: Sequence[int],
    first: Sequence[torch.Tensor],
    second: Sequence[torch.Tensor],
) -> torch.Tensor:
    """[M, H] (silu(x G) * (x U) * prob) D of each row x under its expert; `first` is [G; U], `second` is D.

    One graph node for all experts: at a few hundred rows an expert, autograd's bookkeeping outweighs the products.

    Args:
        hidden: [M, H].
        probs: [M] router weights.
        counts: [E] rows of each expert, in order; adds up to M.
        first: E tensors [2F, H].
        second: E tensors [H, F].
    """
    output: torch.Tensor = _GroupedGatedMlp.apply(  # type: ignore[no-untyped-call]
        hidden, probs, tuple(counts), *first, *second
    )
    return output


class _GroupedGatedMlp(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: torch.autograd.function.FunctionCtx,
        hidden: torch.Tensor,
        probs: torch.Tensor,
        counts: tuple[int, ...],
        *weights: torch.Tensor,
    ) -> torch.Tensor:
        first, second = weights[: len(counts)], weights[len(counts) :]
        inner = _per_expert(hidden, [weight.T for weight in first], counts)
        gate, up = inner.chunk(2, dim=-1)
        activated = (functional.silu(gate) * up * probs[:, None]).to(hidden.dtype)
        ctx.save_for_backward(hidden, probs, inner, activated, *weights)
        ctx.counts = counts  # type: ignore[attr-defined]
        return _per_expert(activated, [weight.T for weight in second], counts)

    @staticmethod
    def backward(
        ctx: torch.autograd.function.FunctionCtx, grad_output: torch.Tensor
    ) -> tuple[torch.Tensor | None, ...]:
        hidden, probs, inner, activated, *weights = ctx.saved_tensors  # type: ignore[attr-defined]
        counts = ctx.counts  # type: ignore[attr-defined]
        first, second = weights[: len(counts)], weights[len(counts) :]
        grad_second = _weight_gradients(grad_output, activated, counts)
        grad_activated = _per_expert(grad_output, second, counts)
        gate, up = inner.chunk(2, dim=-1)
        silu = functional.silu(gate)
        grad_probs = (grad_activated * silu * up).sum(dim=-1).to(probs.dtype)
        grad_product = (grad_activated * probs[:, None]).to(inner.dtype)
        grad_inner = torch.empty_like(inner)
        grad_gate, grad_up = grad_inner.chunk(2, dim=-1)
        torch.mul(grad_product, silu, out=grad_up)
        sigmoid = torch.sigmoid(gate)
        grad_gate.copy_(grad_product * up * (sigmoid + silu * (1 - sigmoid)))
        grad_first = _weight_gradients(grad_inner, hidden, counts)
        grad_hidden = _per_expert(grad_inner, first, counts)
        return (grad_hidden, grad_probs, None, *grad_first, *grad_second)


def _per_expert(rows: torch.Tensor, matrices: Sequence[torch.Tensor], counts: Sequence[int]) -> torch.Tensor:
    """[M, out] each expert's rows times its [in, out] matrix."""
    output = rows.new_empty(rows.shape[0], matrices[0].shape[1])
    start = 0
    for count, matrix in zip(counts, matrices, strict=True):
        if count:
            torch.mm(rows[start : start + count], matrix, out=output[start : start + count])
        start += count
    return output


def _weight_gradients(left: torch.Tensor, right: torch.Tensor, counts: Sequence[int]) -> list[torch.Tensor | None]:
    """E products left^T right over each expert's rows; None for an expert without rows."""
    gradients: list[torch.Tensor | None] = []
    start = 0
    for count in counts:
        part = slice(start, start + count)
        gradients.append(left[part].T @ right[part] if count else None)
        start += count
    return gradients
