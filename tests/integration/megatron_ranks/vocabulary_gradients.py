"""Log-probabilities and entropies over a vocabulary that the ranks share, against plain torch over the whole of it.

Legend: T tokens, V entries of all ranks, padding included.
"""

from collections.abc import Callable

import torch
from torch import distributed

from services.trainer.megatron.vocabulary import label_statistics
from tests.integration.megatron_ranks.cases import TEMPERATURE, Rank, Result

NUM_TOKENS = 24
NUM_ENTRIES = 64
VOCAB_SIZES = (61, 20)
"""With 20 the second of two ranks has nothing but padding."""

LOSSES: dict[str, Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "logprobs": lambda logprobs, _, weights: (logprobs * weights).sum(),
    "entropies": lambda _, entropies, weights: (entropies * weights).sum(),
    "both": lambda logprobs, entropies, weights: (logprobs * weights + entropies).sum(),
}


def vocabulary_gradients(rank: Rank) -> Result:
    """For each loss and size: largest difference of a value, of a gradient, and largest gradient of the padding."""
    from megatron.core import parallel_state

    group: distributed.ProcessGroup = parallel_state.get_tensor_model_parallel_group()
    return {f"{name}/{size}": _differences(group, name, size) for name in LOSSES for size in VOCAB_SIZES}


VOCABULARY_CASES: dict[str, Callable[[Rank], Result]] = {"vocabulary_gradients": vocabulary_gradients}


def _differences(group: distributed.ProcessGroup, loss: str, vocab_size: int) -> tuple[float, float, float]:
    generator = torch.Generator().manual_seed(13)
    whole = 3 * torch.randn(NUM_TOKENS, NUM_ENTRIES, generator=generator)
    labels = torch.arange(NUM_TOKENS) * 7 % vocab_size
    weights = torch.randn(NUM_TOKENS, generator=generator)
    wanted = whole.double().requires_grad_()
    wanted_values = _plain_statistics(wanted[:, :vocab_size], labels)
    LOSSES[loss](*wanted_values, weights.double()).backward()

    width = NUM_ENTRIES // group.size()
    own = slice(group.rank() * width, (group.rank() + 1) * width)
    logits = whole[:, own].clone().requires_grad_()
    values = label_statistics(logits, labels, temperature=TEMPERATURE, vocab_size=vocab_size, group=group)
    LOSSES[loss](*values, weights).backward()
    assert logits.grad is not None
    assert wanted.grad is not None
    is_padding = torch.arange(NUM_ENTRIES)[own] >= vocab_size
    return (
        max(
            float((found - expected).detach().abs().max())
            for found, expected in zip(values, wanted_values, strict=True)
        ),
        float((logits.grad - wanted.grad[:, own]).abs().max()),
        float(torch.where(is_padding, logits.grad, 0.0).abs().max()),
    )


def _plain_statistics(logits: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """[T] log-probabilities and [T] entropies."""
    table = torch.log_softmax(logits / TEMPERATURE, dim=-1)
    return table.gather(1, labels[:, None]).squeeze(1), -(table.exp() * table).sum(-1)
