"""Packed tensors for tests, and sequences taken apart again for slow references."""

import itertools

import torch

from services.trainer.algorithms.policy_loss import PolicyLossInputs
from services.trainer.algorithms.sequences import Sequences


def tensor(values: list[float]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def sequences(*lengths: int) -> Sequences:
    return Sequences(cu_seqlens=torch.tensor([0, *lengths], dtype=torch.int32).cumsum(0).to(torch.int32))


def loss_inputs(
    logprobs: torch.Tensor | list[float],
    *,
    old: list[float] | None = None,
    advantages: list[float] | None = None,
    mask: list[bool] | None = None,
    lengths: tuple[int, ...] = (),
) -> PolicyLossInputs:
    """Float64; without more said, old log-probabilities of 0, advantages of 1, nothing masked, one sequence."""
    num = len(logprobs)
    return PolicyLossInputs(
        logprobs=logprobs if isinstance(logprobs, torch.Tensor) else tensor(logprobs),
        old_logprobs=tensor(old or [0.0] * num),
        advantages=tensor(advantages or [1.0] * num),
        mask=torch.tensor(mask or [True] * num, dtype=torch.bool),
        sequences=sequences(*(lengths or (num,))),
    )


def random_inputs(lengths: tuple[int, ...], *, seed: int, spread: float = 0.3) -> PolicyLossInputs:
    """Ratios around 1, one advantage a sequence, about a quarter masked, NaN wherever masked."""
    generator = torch.Generator().manual_seed(seed)
    num = sum(lengths)
    layout = sequences(*lengths)
    mask = torch.rand(num, generator=generator) > 0.25
    old = -torch.rand(num, generator=generator, dtype=torch.float64) - 0.1
    logprobs = old + spread * torch.randn(num, generator=generator, dtype=torch.float64)
    advantages = layout.spread(torch.randn(len(lengths), generator=generator, dtype=torch.float64))
    nan = torch.full((), torch.nan, dtype=torch.float64)
    return PolicyLossInputs(
        logprobs=torch.where(mask, logprobs, nan).requires_grad_(),
        old_logprobs=torch.where(mask, old, nan),
        advantages=torch.where(mask, advantages, nan),
        mask=mask,
        sequences=layout,
    )


def by_sequence(values: torch.Tensor, mask: torch.Tensor, layout: Sequences) -> list[list[float]]:
    """The unmasked values of each sequence."""
    offsets = layout.cu_seqlens.tolist()
    return [
        [value for value, counts in zip(values[a:b].tolist(), mask[a:b].tolist(), strict=True) if counts]
        for a, b in itertools.pairwise(offsets)
    ]
