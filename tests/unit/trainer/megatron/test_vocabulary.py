import math
from collections.abc import Callable

import pytest
import torch
from torch import distributed
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import TorchDispatchMode

from services.trainer.megatron.vocabulary import label_statistics


@pytest.fixture(scope="module")
def group() -> distributed.ProcessGroup:
    """A group of one rank, apart from torch's global state."""
    return distributed.ProcessGroupGloo(distributed.HashStore(), 0, 1)


def _statistics(
    logits: torch.Tensor,
    labels: list[int],
    group: distributed.ProcessGroup,
    *,
    temperature: float = 1.0,
    vocab: int = 0,
) -> tuple[torch.Tensor, torch.Tensor]:
    return label_statistics(
        logits, torch.tensor(labels), temperature=temperature, vocab_size=vocab or logits.shape[1], group=group
    )


def test_two_even_entries_have_log_probability_and_entropy_log_2(group: distributed.ProcessGroup) -> None:
    logprobs, entropies = _statistics(torch.tensor([[3.0, 3.0]]), [1], group)
    assert logprobs.item() == pytest.approx(-math.log(2))
    assert entropies.item() == pytest.approx(math.log(2))


@pytest.mark.parametrize(("temperature", "num_padding"), [(0.5, 0), (0.8, 3), (1.0, 0), (1.7, 1)])
def test_values_and_gradients_are_those_of_log_softmax(
    temperature: float, num_padding: int, group: distributed.ProcessGroup
) -> None:
    logits = torch.randn(5, 8 + num_padding, generator=torch.Generator().manual_seed(1)).requires_grad_()
    labels = [0, 7, 3, 3, 1]
    logprobs, entropies = _statistics(logits, labels, group, temperature=temperature, vocab=8)
    table = torch.log_softmax(logits[:, :8] / temperature, dim=-1)
    wanted = table.gather(1, torch.tensor(labels)[:, None]).squeeze(1)
    torch.testing.assert_close(logprobs, wanted)
    wanted_entropies = -(table.exp() * table).sum(-1)
    torch.testing.assert_close(entropies, wanted_entropies)
    weights = torch.tensor([1.0, -2.0, 0.0, 0.5, 3.0])
    for found_loss, expected_loss in (
        ((logprobs * weights).sum(), (wanted * weights).sum()),
        ((entropies * weights).sum(), (wanted_entropies * weights).sum()),
        ((logprobs * weights + entropies).sum(), (wanted * weights + wanted_entropies).sum()),
    ):
        (found,) = torch.autograd.grad(found_loss, logits, retain_graph=True)
        (expected,) = torch.autograd.grad(expected_loss, logits, retain_graph=True)
        torch.testing.assert_close(found, expected)


class ShapeCounter(TorchDispatchMode):
    """Counts the operations with a result of one shape."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self._shape = shape
        self.count = 0

    def __torch_dispatch__(
        self,
        operation: Callable[..., object],
        types: object,
        arguments: tuple[object, ...] = (),
        options: dict[str, object] | None = None,
    ) -> object:
        result = operation(*arguments, **(options or {}))
        self.count += isinstance(result, torch.Tensor) and result.shape == self._shape
        return result


def test_a_loss_without_entropies_does_not_pay_for_their_gradient(group: distributed.ProcessGroup) -> None:
    logits = torch.randn(3, 8).requires_grad_()
    logprobs, entropies = _statistics(logits, [0, 1, 2], group)
    with ShapeCounter((3, 8)) as alone:
        torch.autograd.grad(logprobs.sum(), logits, retain_graph=True)
    # the product with the probabilities and the label's own share
    assert alone.count == 2
    with ShapeCounter((3, 8)) as both:
        torch.autograd.grad((logprobs + entropies).sum(), logits)
    assert both.count > alone.count


def test_one_table_is_kept_for_both_gradients(group: distributed.ProcessGroup) -> None:
    shapes = []

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        shapes.append(tuple(tensor.shape))
        return tensor

    with saved_tensors_hooks(keep, lambda tensor: tensor):
        _statistics(torch.randn(3, 8).requires_grad_(), [0, 1, 2], group)
    assert shapes.count((3, 8)) == 1


def test_the_logits_are_left_as_they_were(group: distributed.ProcessGroup) -> None:
    logits = torch.randn(3, 6)
    before = logits.clone()
    _statistics(logits, [0, 1, 2], group, vocab=5)
    assert torch.equal(logits, before)


def test_padding_of_the_vocabulary_has_no_probability_and_no_gradient(group: distributed.ProcessGroup) -> None:
    logits = torch.tensor([[0.0, 0.0, 50.0, float("nan")]], requires_grad=True)
    logprobs, entropies = _statistics(logits, [0], group, vocab=2)
    assert logprobs.item() == pytest.approx(-math.log(2))
    assert entropies.item() == pytest.approx(math.log(2))
    (gradient,) = torch.autograd.grad(logprobs.sum(), logits, retain_graph=True)
    assert gradient.tolist() == [[0.5, -0.5, 0.0, 0.0]]
    # the entropy of two even entries is at its maximum
    (gradient,) = torch.autograd.grad(entropies.sum(), logits)
    assert gradient[0].tolist() == pytest.approx([0.0, 0.0, 0.0, 0.0], abs=1e-7)


def test_far_apart_logits_stay_finite(group: distributed.ProcessGroup) -> None:
    logits = torch.tensor([[1e4, -1e4]], requires_grad=True)
    logprobs, entropies = _statistics(logits, [1], group)
    assert logprobs.item() == -2e4
    assert entropies.item() == 0.0
    (logprobs + entropies).sum().backward()
    assert logits.grad is not None
    assert logits.grad.tolist() == [[-1.0, 1.0]]


def test_bfloat16_logits_are_taken_in_float32(group: distributed.ProcessGroup) -> None:
    logits = torch.tensor([[1.0, 2.0]], dtype=torch.bfloat16, requires_grad=True)
    logprobs, _ = _statistics(logits, [0], group)
    assert logprobs.dtype == torch.float32
    assert logprobs.item() == pytest.approx(-math.log1p(math.e), abs=1e-6)
    logprobs.sum().backward()
    assert logits.grad is not None
    assert logits.grad.dtype == torch.bfloat16
