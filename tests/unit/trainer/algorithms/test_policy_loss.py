import math

import pytest
import torch

from services.trainer.algorithms.policy_loss import (
    clipped_surrogate,
    clipped_weight,
    sequence_surrogate,
    sequence_token_surrogate,
)
from tests.unit.trainer.algorithms.packed import by_sequence, loss_inputs, random_inputs, tensor

LOSSES = {
    "clipped_surrogate": lambda inputs: clipped_surrogate(inputs, clip_low=0.2, clip_high=0.28),
    "dual clip": lambda inputs: clipped_surrogate(inputs, clip_low=0.2, clip_high=0.28, dual_clip=1.5),
    "sequence_surrogate": lambda inputs: sequence_surrogate(inputs, clip_low=0.2, clip_high=0.28),
    "sequence_token_surrogate": lambda inputs: sequence_token_surrogate(inputs, clip_low=0.2, clip_high=0.28),
    "clipped_weight": lambda inputs: clipped_weight(inputs, clip_low=1.0, clip_high=0.28),
}
"""Every loss with clips that the random inputs reach."""


def test_token_ratio_is_clipped_on_the_side_where_the_advantage_pushes():
    ratios, advantages = [1.5, 0.5, 1.5, 0.5, 1.1], [2.0, 2.0, -2.0, -2.0, 2.0]
    logprobs = tensor([math.log(r) for r in ratios]).requires_grad_()
    result = clipped_surrogate(loss_inputs(logprobs, advantages=advantages), clip_low=0.2, clip_high=0.28)
    # A > 0: min(1.5, 1.28) 2 and min(0.5, 0.8) 2. A < 0: min(-3, -2.56) and min(-1, -1.6). Inside: 1.1 x 2.
    assert result.losses.tolist() == pytest.approx([-2.56, -1.0, 3.0, 1.6, -2.2])
    assert result.is_clipped.tolist() == [True, False, False, True, False]
    result.losses.sum().backward()
    # none where clipped, else -ratio A
    assert logprobs.grad.tolist() == pytest.approx([0.0, -1.0, 3.0, 0.0, -2.2])


def test_dual_clip_bounds_the_loss_of_negative_advantages_alone():
    logprobs = tensor([math.log(r) for r in (5.0, 2.0, 5.0)]).requires_grad_()
    inputs = loss_inputs(logprobs, advantages=[-1.0, -1.0, 1.0])
    result = clipped_surrogate(inputs, clip_low=0.2, clip_high=0.2, dual_clip=3.0)
    # 5 cut to 3; 2 below the cut; a positive advantage has the ordinary clip
    assert result.losses.tolist() == pytest.approx([3.0, 2.0, -1.2])
    assert result.is_clipped.tolist() == [True, False, True]
    result.losses.sum().backward()
    assert logprobs.grad.tolist() == pytest.approx([0.0, 2.0, 0.0])


def test_sequence_ratio_is_the_geometric_mean_and_shared_by_its_tokens():
    # sequence one: ratios 2 and 0.5, geometric mean 1; sequence two: 1.2 and 1.2
    inputs = loss_inputs(
        [math.log(2.0), math.log(0.5), math.log(1.2), math.log(1.2)], advantages=[1.0, 1.0, 3.0, 3.0], lengths=(2, 2)
    )
    result = sequence_surrogate(inputs, clip_low=0.1, clip_high=0.1)
    assert result.losses.tolist() == pytest.approx([-1.0, -1.0, -3.3, -3.3])
    assert result.is_clipped.tolist() == [False, False, True, True]


def test_gradient_goes_through_the_sequence_ratio():
    # the losses of n tokens add up to -n s A with s = exp(mean of log-ratios): each token gets -n s A / n
    logprobs = tensor([0.1, -0.3, 0.5]).requires_grad_()
    sequence_surrogate(loss_inputs(logprobs, advantages=[2.0] * 3), clip_low=0.9, clip_high=0.9).losses.sum().backward()
    assert logprobs.grad.tolist() == pytest.approx([-2.0 * math.exp(0.1)] * 3)


def test_token_variant_has_the_sequences_value_and_the_tokens_gradient():
    logprobs = tensor([0.1, -0.3, 0.5]).requires_grad_()
    inputs = loss_inputs(logprobs, advantages=[2.0, -1.0, 3.0])
    result = sequence_token_surrogate(inputs, clip_low=0.9, clip_high=0.9)
    ratio = math.exp(0.1)
    assert result.losses.tolist() == pytest.approx([-2.0 * ratio, ratio, -3.0 * ratio])
    result.losses.sum().backward()
    # -s A of the token itself; through the sequence's ratio each would be the mean of these
    assert logprobs.grad.tolist() == pytest.approx([-2.0 * ratio, ratio, -3.0 * ratio])


def test_with_one_advantage_a_sequence_the_token_variant_is_the_sequence_loss():
    gradients, values = [], []
    for loss in (LOSSES["sequence_surrogate"], LOSSES["sequence_token_surrogate"]):
        inputs = random_inputs((5, 1, 0, 7, 4), seed=5)
        losses = loss(inputs).losses
        losses.sum().backward()
        values.append(losses.tolist())
        gradients.append(inputs.logprobs.grad.tolist())
    assert values[0] == pytest.approx(values[1])
    assert gradients[0] == pytest.approx(gradients[1])


def test_clipped_weight_keeps_every_gradient():
    ratios, advantages = [4.0, 0.1, 1.1], [2.0, -3.0, 1.0]
    logprobs = tensor([math.log(r) for r in ratios]).requires_grad_()
    result = clipped_weight(loss_inputs(logprobs, advantages=advantages), clip_low=0.5, clip_high=1.0)
    # weights 2 (cut), 0.5 (raised) and 1.1; the loss is -weight A log p
    weights = [2.0, 0.5, 1.1]
    expected = [-w * a * math.log(r) for w, a, r in zip(weights, advantages, ratios, strict=True)]
    assert result.losses.tolist() == pytest.approx(expected)
    assert result.is_clipped.tolist() == [True, True, False]
    result.losses.sum().backward()
    assert logprobs.grad.tolist() == pytest.approx([-w * a for w, a in zip(weights, advantages, strict=True)])


def _slow(name, inputs):
    """Losses of the unmasked tokens of each sequence, from the papers' formulas in a loop."""
    tables = [
        by_sequence(values.detach(), inputs.mask, inputs.sequences)
        for values in (inputs.logprobs, inputs.old_logprobs, inputs.advantages)
    ]
    for logprobs, old, advantages in zip(*tables, strict=True):
        log_ratios = [a - b for a, b in zip(logprobs, old, strict=True)]
        mean = sum(log_ratios) / max(1, len(log_ratios))
        for logprob, log_ratio, advantage in zip(logprobs, log_ratios, advantages, strict=True):
            ratio = math.exp(mean if name.startswith("sequence") else log_ratio)
            if name == "clipped_weight":
                yield -min(max(ratio, 0.0), 1.28) * advantage * logprob
                continue
            loss = max(-ratio * advantage, -min(max(ratio, 0.8), 1.28) * advantage)
            yield min(loss, -1.5 * advantage) if name == "dual clip" and advantage < 0 else loss


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("seed", range(5))
def test_it_agrees_with_a_loop_and_nothing_under_the_mask_touches_it(name, seed):
    inputs = random_inputs((5, 1, 0, 7, 4), seed=seed)
    result = LOSSES[name](inputs)
    assert result.losses[inputs.mask].tolist() == pytest.approx(list(_slow(name, inputs)))
    assert result.losses[~inputs.mask].abs().sum().item() == 0.0
    assert not result.is_clipped[~inputs.mask].any()
    result.losses.sum().backward()
    assert inputs.logprobs.grad.isfinite().all()
    assert inputs.logprobs.grad[~inputs.mask].abs().sum().item() == 0.0
    assert inputs.logprobs.grad[inputs.mask].abs().sum().item() > 0.0


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("lengths", [(2,), (1, 1), (0, 2)])
def test_batch_without_counted_tokens_is_zero_with_a_gradient_of_zeros(name, lengths):
    logprobs = tensor([-1.0, math.nan]).requires_grad_()
    loss = LOSSES[name](loss_inputs(logprobs, mask=[False, False], lengths=lengths)).losses.sum()
    loss.backward()
    assert loss.item() == 0.0
    assert logprobs.grad.tolist() == [0.0, 0.0]


@pytest.mark.parametrize("name", LOSSES)
def test_no_tokens_at_all_are_no_loss(name):
    assert LOSSES[name](loss_inputs(tensor([]), lengths=(0, 0))).losses.sum().item() == 0.0


@pytest.mark.parametrize("name", LOSSES)
def test_huge_ratio_stays_finite(name):
    logprobs = tensor([0.0, 0.0]).requires_grad_()
    losses = LOSSES[name](loss_inputs(logprobs, old=[-900.0, -900.0], advantages=[-1.0, -1.0])).losses
    losses.sum().backward()
    assert losses.isfinite().all()
    assert logprobs.grad.isfinite().all()
    if name in ("clipped_surrogate", "sequence_surrogate"):
        assert losses.tolist() == pytest.approx([math.exp(20)] * 2)


@pytest.mark.parametrize("name", ["clipped_surrogate", "dual clip", "sequence_surrogate"])
def test_gradient_is_the_derivative(name):
    """The other two stop gradients on purpose."""
    generator = torch.Generator().manual_seed(0)
    logprobs = (0.05 * torch.randn(6, dtype=torch.float64, generator=generator)).requires_grad_()
    advantages = torch.randn(6, dtype=torch.float64, generator=generator).tolist()

    def loss(values):
        inputs = loss_inputs(values, advantages=advantages, mask=[True, True, False, True, True, True], lengths=(2, 4))
        return LOSSES[name](inputs).losses.sum()

    assert torch.autograd.gradcheck(loss, logprobs)
