import math

import pytest
import torch

from services.trainer.algorithms.kl import KL_ESTIMATORS, k3, kl_estimate, weighted_estimate
from tests.unit.trainer.algorithms.packed import tensor, unmasked

# of d = log p - log p_reference: value and slope
BY_HAND = {
    "k1": (lambda d: d, lambda d: 1.0),
    "k2": (lambda d: d * d / 2, lambda d: d),
    "k3": (lambda d: math.exp(-d) - 1 + d, lambda d: 1 - math.exp(-d)),
    "low_variance": (
        lambda d: min(math.exp(-d) - 1 + d, 10.0),
        lambda d: 1 - math.exp(-d) if math.exp(-d) - 1 + d < 10 else 0.0,
    ),
}


def test_every_estimator_of_the_recipe_is_here():
    assert set(BY_HAND) == set(KL_ESTIMATORS)


@pytest.mark.parametrize("name", KL_ESTIMATORS)
def test_value_and_gradient_by_hand(name):
    differences = [-3.0, -0.2, 0.0, 0.5, 2.0]
    logprobs = tensor([-1.0 + d for d in differences]).requires_grad_()
    found = kl_estimate(name, logprobs, tensor([-1.0] * 5), torch.tensor([True] * 5))
    found.sum().backward()
    value, slope = BY_HAND[name]
    assert found.tolist() == pytest.approx([value(d) for d in differences])
    assert logprobs.grad.tolist() == pytest.approx([slope(d) for d in differences], abs=1e-12)


@pytest.mark.parametrize("name", KL_ESTIMATORS)
def test_masked_tokens_are_zero_in_value_and_gradient(name):
    logprobs = tensor([-1.0, math.nan, math.inf]).requires_grad_()
    mask = torch.tensor([True, False, False])
    found = kl_estimate(name, logprobs, tensor([-1.5, -1.0, math.nan]), mask)
    weighted = weighted_estimate(found, logprobs, tensor([-1.2, math.nan, 0.0]), mask)
    (found + weighted).sum().backward()
    assert found[1:].tolist() == weighted[1:].tolist() == [0.0, 0.0]
    assert logprobs.grad[1:].tolist() == [0.0, 0.0]
    assert logprobs.grad.isfinite().all()


@pytest.mark.parametrize("name", KL_ESTIMATORS)
def test_far_apart_policies_give_a_finite_estimate(name):
    found = kl_estimate(name, tensor([-900.0, 0.0]), tensor([0.0, -900.0]), torch.tensor([True, True]))
    assert found.isfinite().all()
    if name == "low_variance":
        assert found.tolist() == [10.0, 10.0]


@pytest.mark.parametrize("name", ["k1", "k2", "k3"])
def test_gradcheck_of_estimate_and_weighted_estimate(name):
    generator = torch.Generator().manual_seed(0)
    logprobs = torch.randn(6, dtype=torch.float64, generator=generator).requires_grad_()
    reference, old = (torch.randn(6, dtype=torch.float64, generator=generator) for _ in range(2))
    mask = torch.tensor([True, True, False, True, True, True])
    assert torch.autograd.gradcheck(lambda v: kl_estimate(name, v, reference, mask), logprobs)
    assert torch.autograd.gradcheck(
        lambda v: weighted_estimate(kl_estimate(name, v, reference, mask), v, old, mask), logprobs
    )


@pytest.mark.parametrize("name", KL_ESTIMATORS)
def test_weighted_value_and_gradient_by_hand(name):
    # d = log p - log reference, r = log p - log old: the product rule gives exp(r) (value + slope)
    pairs = [(0.5, 0.2), (-0.7, -0.1), (1.5, 0.0), (-3.0, 0.4)]
    logprobs = tensor([-1.0] * 4).requires_grad_()
    estimate = kl_estimate(name, logprobs, tensor([-1.0 - d for d, _ in pairs]), unmasked(4))
    found = weighted_estimate(estimate, logprobs, tensor([-1.0 - r for _, r in pairs]), unmasked(4))
    found.sum().backward()
    value, slope = BY_HAND[name]
    assert found.tolist() == pytest.approx([math.exp(r) * value(d) for d, r in pairs])
    assert logprobs.grad.tolist() == pytest.approx([math.exp(r) * (value(d) + slope(d)) for d, r in pairs])


def test_gradcheck_of_low_variance_away_from_its_bound():
    logprobs = tensor([-1.0, -1.3, -0.2, -4.5]).requires_grad_()
    reference, old = tensor([-1.4, -0.9, -1.0, -0.5]), tensor([-1.1, -1.0, -0.3, -3.9])

    def weighted(values):
        return weighted_estimate(kl_estimate("low_variance", values, reference, unmasked(4)), values, old, unmasked(4))

    assert torch.autograd.gradcheck(weighted, logprobs)


@pytest.mark.parametrize("sign", [1, -1])
def test_k3_is_never_negative_in_single_precision(sign):
    difference = sign * torch.logspace(-12, 1.3, 100_001)
    assert (k3(difference) >= 0).all()


def test_k3_keeps_its_digits_where_the_policies_all_but_agree():
    # d^2 / 2 - d^3 / 6; exp(-d) - 1 in single precision has an error of 6e-8, beyond the value itself
    for difference in (1e-3, 3e-4, -1e-3):
        expected = difference**2 / 2 - difference**3 / 6
        assert k3(torch.tensor(difference)).item() == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize("name", KL_ESTIMATORS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_weighted_estimates_of_far_apart_policies_are_finite_with_finite_gradients(name, dtype):
    logprobs = torch.tensor([-900.0, 0.0, -900.0, 0.0], dtype=dtype, requires_grad=True)
    reference, old = (torch.tensor(v, dtype=dtype) for v in ([0.0, -900.0, 0.0, -900.0], [0.0, 0.0, -2000.0, -900.0]))
    estimate = kl_estimate(name, logprobs, reference, unmasked(4))
    weighted = weighted_estimate(estimate, logprobs, old, unmasked(4))
    weighted.sum().backward()
    assert weighted.isfinite().all()
    assert logprobs.grad.isfinite().all()


@pytest.mark.parametrize("name", KL_ESTIMATORS)
@pytest.mark.parametrize("num", [0, 2])
def test_nothing_counted_is_nothing(name, num):
    logprobs = tensor([math.nan] * num).requires_grad_()
    mask = torch.zeros(num, dtype=torch.bool)
    estimate = kl_estimate(name, logprobs, tensor([math.inf] * num), mask)
    weighted = weighted_estimate(estimate, logprobs, tensor([math.nan] * num), mask)
    (estimate + weighted).sum().backward()
    assert estimate.tolist() == weighted.tolist() == logprobs.grad.tolist() == [0.0] * num


def test_the_reference_moves_the_estimate_the_other_way():
    reference = tensor([-1.5]).requires_grad_()
    kl_estimate("k1", tensor([-1.0]), reference, unmasked(1)).sum().backward()
    assert reference.grad.tolist() == [-1.0]


def _exact(policy: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    log_policy, log_reference = policy.log_softmax(-1), reference.log_softmax(-1)
    return (log_policy.exp() * (log_policy - log_reference)).sum()


@pytest.mark.parametrize("name", ["k1", "k3"])
def test_the_mean_over_the_old_policys_tokens_of_weighted_k1_and_k3_is_the_divergence_with_its_gradient(name):
    """Summed over a whole vocabulary instead of drawn: the mean is exact."""
    generator = torch.Generator().manual_seed(3)
    policy, reference, old = (torch.randn(5, dtype=torch.float64, generator=generator) for _ in range(3))
    policy.requires_grad_()
    everywhere = torch.ones(5, dtype=torch.bool)
    logprobs, old_logprobs = policy.log_softmax(-1), old.log_softmax(-1)
    estimate = kl_estimate(name, logprobs, reference.log_softmax(-1), everywhere)
    weighted = weighted_estimate(estimate, logprobs, old_logprobs, everywhere)
    mean = (old_logprobs.exp() * weighted).sum()
    wanted = _exact(policy, reference)
    assert mean.item() == pytest.approx(wanted.item())
    (found_gradient,) = torch.autograd.grad(mean, policy, retain_graph=True)
    (wanted_gradient,) = torch.autograd.grad(wanted, policy)
    assert found_gradient.tolist() == pytest.approx(wanted_gradient.tolist())


def test_on_policy_the_gradient_of_k2_is_that_of_the_divergence_and_that_of_k1_is_zero():
    generator = torch.Generator().manual_seed(4)
    policy, reference = (torch.randn(5, dtype=torch.float64, generator=generator) for _ in range(2))
    policy.requires_grad_()
    everywhere = torch.ones(5, dtype=torch.bool)
    logprobs = policy.log_softmax(-1)
    probabilities = logprobs.exp().detach()
    gradients = {}
    for name in ("k1", "k2"):
        mean = (probabilities * kl_estimate(name, logprobs, reference.log_softmax(-1), everywhere)).sum()
        (gradients[name],) = torch.autograd.grad(mean, policy, retain_graph=True)
    (wanted,) = torch.autograd.grad(_exact(policy, reference), policy)
    assert gradients["k2"].tolist() == pytest.approx(wanted.tolist())
    assert gradients["k1"].tolist() == pytest.approx([0.0] * 5, abs=1e-12)


@pytest.mark.parametrize("name", ["k1", "k3"])
def test_the_mean_of_k1_and_of_k3_over_the_policys_tokens_is_the_divergence_and_that_of_k2_is_not(name):
    generator = torch.Generator().manual_seed(5)
    logits, others = (torch.randn(6, dtype=torch.float64, generator=generator) for _ in range(2))
    logprobs, reference = logits.log_softmax(-1), others.log_softmax(-1)
    means = {
        each: (logprobs.exp() * kl_estimate(each, logprobs, reference, unmasked(6))).sum().item()
        for each in (name, "k2")
    }
    wanted = _exact(logits, others).item()
    assert means[name] == pytest.approx(wanted)
    assert abs(means["k2"] - wanted) > 0.01 * wanted
