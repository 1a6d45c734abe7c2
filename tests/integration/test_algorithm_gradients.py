"""Every algorithm through Megatron: the same gradient under any split into ranks and micro-batches."""

import pytest
import torch

from tests.integration.megatron_ranks.algorithm_steps import ALGORITHMS, MICRO_BATCH_SIZES
from tests.integration.megatron_ranks.launcher import Launch, Launcher, as_shards
from tests.integration.megatron_ranks.reassembly import reassemble, relative_difference

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

# Of the gradient as one vector. All that differs is the order of float32 sums.
TOLERANCE = 1e-6
# Here sums over the vocabulary and over hidden sizes are split, too.
TENSOR_PARALLEL_TOLERANCE = 3e-6
# `reference` first: it wants a policy that has kept none.
CASES = ("reference", "algorithm_steps")
LAUNCHES = {
    "one": Launch(cases=CASES),
    "dp2": Launch(cases=CASES, world=2),
    "tp2": Launch(cases=CASES, world=2, tp=2),
}


@pytest.fixture(scope="module")
def launcher(tmp_path_factory: pytest.TempPathFactory) -> Launcher:
    return Launcher(tmp_path_factory.mktemp("algorithms"), LAUNCHES)


def gradients(launcher: Launcher, launch: str, step: str) -> dict[str, torch.Tensor]:
    return reassemble([as_shards(rank[step][1]) for rank in launcher.ranks(launch, "algorithm_steps")])


def as_vector(tensors: dict[str, torch.Tensor]) -> torch.Tensor:
    return torch.cat([tensors[name].flatten() for name in sorted(tensors)])


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("launch", ["one", "dp2", "tp2"])
def test_the_gradient_does_not_depend_on_ranks_and_micro_batches(
    launch: str, algorithm: str, launcher: Launcher
) -> None:
    wanted = gradients(launcher, "one", f"{algorithm}/4")
    tolerance = TENSOR_PARALLEL_TOLERANCE if launch == "tp2" else TOLERANCE
    for size in MICRO_BATCH_SIZES:
        found = gradients(launcher, launch, f"{algorithm}/{size}")
        assert relative_difference(as_vector(found), as_vector(wanted)) < tolerance, size
    assert max(float(gradient.norm()) for gradient in wanted.values()) > 1e-3


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("launch", ["one", "dp2", "tp2"])
def test_every_rank_reports_the_figures_of_the_whole(launch: str, algorithm: str, launcher: Launcher) -> None:
    wanted = launcher.ranks("one", "algorithm_steps")[0][f"{algorithm}/4"][0]
    for rank in launcher.ranks(launch, "algorithm_steps"):
        for size in MICRO_BATCH_SIZES:
            assert rank[f"{algorithm}/{size}"][0] == pytest.approx(wanted, rel=1e-4, abs=1e-5)


def test_the_steps_use_what_they_are_there_for(launcher: Launcher) -> None:
    """Otherwise equal gradients would say little: clips, cuts, rejections and masks take effect."""
    (rank,) = launcher.ranks("one", "algorithm_steps")
    figures = {name: rank[f"{name}/4"][0] for name in ALGORITHMS}
    assert figures["dapo"]["kl"] > 0
    assert figures["dr_grpo"]["importance_cut"] > 0
    assert figures["reinforce_plus_plus"]["num_tokens_rejected"] > 0
    assert figures["reinforce_plus_plus_baseline"]["sequence_masked"] > 0
    assert figures["cispo"]["clip_fraction"] > 0


@pytest.mark.parametrize("launch", ["one", "dp2", "tp2"])
def test_the_bias_that_balances_experts_is_frozen(launch: str, launcher: Launcher) -> None:
    for rank in launcher.ranks(launch, "algorithm_steps"):
        before, after = as_shards(rank["biases"]), as_shards(rank["biases_later"])
        assert len(before) > 0
        # moved with all weights by the test, by nothing else
        assert all(torch.equal(b[3] * 1.01 * 1.02, a[3]) for b, a in zip(before, after, strict=True))


@pytest.mark.parametrize("launch", ["one", "dp2", "tp2"])
def test_the_reference_says_the_same_for_ever_and_leaves_no_trace(launch: str, launcher: Launcher) -> None:
    for rank in launcher.ranks(launch, "reference"):
        assert rank["error"].startswith("StateConflictError: log-probabilities of a reference are wanted")
        assert all(torch.equal(a, k) for a, k in zip(rank["asked"], rank["kept"], strict=True))
        assert all(torch.equal(a, m) for a, m in zip(rank["again"], rank["moved"], strict=True))
        assert not torch.equal(rank["moved"][0], rank["kept"][0])
        pairs = zip(as_shards(rank["weights"]), as_shards(rank["weights_later"]), strict=True)
        assert all(torch.equal(before[3], after[3]) for before, after in pairs)
