import math

import pytest
import torch

from services.trainer.algorithms.policy_loss import POLICY_LOSSES, PolicyLossInputs, grpo_loss, gspo_loss


def _inputs(logprobs, *, old=None, advantages=None, mask=None, cu_seqlens=None):
    length = len(logprobs)
    return PolicyLossInputs(
        logprobs=logprobs if isinstance(logprobs, torch.Tensor) else torch.tensor(logprobs, dtype=torch.float64),
        old_logprobs=torch.tensor(old or [0.0] * length, dtype=torch.float64),
        advantages=torch.tensor(advantages or [1.0] * length, dtype=torch.float64),
        mask=torch.tensor(mask or [True] * length),
        cu_seqlens=torch.tensor(cu_seqlens or [0, length], dtype=torch.int32),
    )


def test_token_ratio_is_clipped_on_the_side_where_the_advantage_pushes():
    ratios, advantages = [1.5, 0.5, 1.5, 0.5, 1.1], [2.0, 2.0, -2.0, -2.0, 2.0]
    inputs = _inputs([math.log(r) for r in ratios], advantages=advantages)
    result = grpo_loss(inputs, 0.2, 0.28)
    # A > 0: min(1.5, 1.28) 2 and min(0.5, 0.8) 2. A < 0: min(-3, -2.56) and min(-1, -1.6). Inside: 1.1 x 2.
    assert result.losses.tolist() == pytest.approx([-2.56, -1.0, 3.0, 1.6, -2.2])
    assert result.is_clipped.tolist() == [True, False, False, True, False]


def test_clipped_token_has_no_gradient_and_others_have_minus_ratio_times_advantage():
    logprobs = torch.tensor([math.log(1.5), math.log(1.1)], dtype=torch.float64, requires_grad=True)
    grpo_loss(_inputs(logprobs, advantages=[2.0, 2.0]), 0.2, 0.28).losses.sum().backward()
    assert logprobs.grad.tolist() == pytest.approx([0.0, -2.2])


def test_sequence_ratio_is_the_geometric_mean_and_shared_by_its_tokens():
    # sequence one: ratios 2 and 0.5, geometric mean 1; sequence two: 1.2 and 1.2
    inputs = _inputs(
        [math.log(2.0), math.log(0.5), math.log(1.2), math.log(1.2)],
        advantages=[1.0, 1.0, 3.0, 3.0],
        cu_seqlens=[0, 2, 4],
    )
    result = gspo_loss(inputs, 0.1, 0.1)
    assert result.losses.tolist() == pytest.approx([-1.0, -1.0, -3.3, -3.3])
    assert result.is_clipped.tolist() == [False, False, True, True]


def test_gradient_goes_through_the_sequence_ratio():
    # loss sum = -n s A with s = exp(mean of log-ratios), so each token gets -n s A / n = -s A
    logprobs = torch.tensor([0.1, -0.3, 0.5], dtype=torch.float64, requires_grad=True)
    gspo_loss(_inputs(logprobs, advantages=[2.0] * 3), 0.9, 0.9).losses.sum().backward()
    assert logprobs.grad.tolist() == pytest.approx([-2.0 * math.exp(0.1)] * 3)


@pytest.mark.parametrize("name", sorted(POLICY_LOSSES))
def test_masked_tokens_touch_neither_values_nor_gradients(name):
    logprobs = torch.tensor([0.05, math.nan, -0.02, math.inf], dtype=torch.float64, requires_grad=True)
    inputs = _inputs(
        logprobs,
        old=[0.0, math.nan, 0.0, 0.0],
        advantages=[1.0, math.nan, -1.0, math.nan],
        mask=[True, False, True, False],
    )
    result = POLICY_LOSSES[name](inputs, 0.2, 0.28)
    clean = POLICY_LOSSES[name](_inputs([0.05, -0.02], advantages=[1.0, -1.0]), 0.2, 0.28)
    assert result.losses[inputs.mask].tolist() == pytest.approx(clean.losses.tolist())
    assert result.losses[~inputs.mask].tolist() == [0.0, 0.0]
    result.losses.sum().backward()
    assert logprobs.grad.isfinite().all()
    assert logprobs.grad[~inputs.mask].tolist() == [0.0, 0.0]


@pytest.mark.parametrize("name", sorted(POLICY_LOSSES))
def test_batch_without_counted_tokens_is_zero_with_a_gradient_of_zeros(name):
    logprobs = torch.tensor([-1.0, -2.0], dtype=torch.float64, requires_grad=True)
    loss = POLICY_LOSSES[name](_inputs(logprobs, mask=[False, False]), 0.2, 0.28).losses.sum()
    loss.backward()
    assert loss.item() == 0.0
    assert logprobs.grad.tolist() == [0.0, 0.0]


@pytest.mark.parametrize("name", sorted(POLICY_LOSSES))
def test_huge_ratio_stays_finite(name):
    logprobs = torch.tensor([0.0, 0.0], dtype=torch.float64, requires_grad=True)
    result = POLICY_LOSSES[name](_inputs(logprobs, old=[-900.0, -900.0], advantages=[-1.0, -1.0]), 0.2, 0.28)
    assert result.losses.tolist() == pytest.approx([math.exp(20)] * 2)


@pytest.mark.parametrize("name", sorted(POLICY_LOSSES))
def test_gradient_is_the_derivative(name):
    generator = torch.Generator().manual_seed(0)
    logprobs = (0.05 * torch.randn(6, dtype=torch.float64, generator=generator)).requires_grad_()
    advantages = torch.randn(6, dtype=torch.float64, generator=generator).tolist()

    def loss(values):
        inputs = _inputs(
            values, advantages=advantages, mask=[True, True, False, True, True, True], cu_seqlens=[0, 2, 6]
        )
        return POLICY_LOSSES[name](inputs, 0.2, 0.28).losses.sum()

    assert torch.autograd.gradcheck(loss, logprobs)
