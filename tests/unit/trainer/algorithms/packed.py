"""Packed tensors for tests, and sequences taken apart again for slow references."""

import itertools
import math

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


def random_inputs(
    lengths: tuple[int, ...], *, seed: int, spread: float = 0.3, by_token: bool = False
) -> PolicyLossInputs:
    """Ratios around 1, one advantage a sequence or token, about a quarter masked; NaN, inf or -inf wherever masked."""
    generator = torch.Generator().manual_seed(seed)
    num = sum(lengths)
    layout = sequences(*lengths)
    mask = torch.rand(num, generator=generator) > 0.25
    old = -torch.rand(num, generator=generator, dtype=torch.float64) - 0.1
    logprobs = old + spread * torch.randn(num, generator=generator, dtype=torch.float64)
    advantages = layout.spread(torch.randn(len(lengths), generator=generator, dtype=torch.float64))
    if by_token:
        advantages = torch.randn(num, generator=generator, dtype=torch.float64)
    return PolicyLossInputs(
        logprobs=_hide(logprobs, mask, first=0).requires_grad_(),
        old_logprobs=_hide(old, mask, first=1),
        advantages=_hide(advantages, mask, first=3),
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


def unmasked(num: int) -> torch.Tensor:
    return torch.ones(num, dtype=torch.bool)


def _hide(values: torch.Tensor, mask: torch.Tensor, *, first: int) -> torch.Tensor:
    """Numbers that must not be seen wherever masked; by the starting points, all pairs of them meet."""
    hidden = tensor([math.nan, math.inf, -math.inf, math.inf])
    places = (torch.arange(len(values)) + first + torch.arange(len(values)) // 4) % 4
    return torch.where(mask, values, hidden[places])
