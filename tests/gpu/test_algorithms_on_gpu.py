"""Every algorithm through Megatron on a GPU: gradients and figures of a CPU, a reference that leaves no trace."""

import pytest
import torch

from tests.integration.megatron_ranks.algorithm_steps import ALGORITHMS, MICRO_BATCH_SIZES
from tests.integration.megatron_ranks.launcher import Launch, Launcher, as_shards
from tests.integration.megatron_ranks.reassembly import reassemble, relative_difference

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]

# Float32 kernels of another kind, in another order.
TOLERANCE = 1e-5
CASES = ("reference", "algorithm_steps")
LAUNCHES = {"cpu": Launch(cases=CASES), "gpu": Launch(cases=CASES, device="cuda")}


@pytest.fixture(scope="module")
def launcher(tmp_path_factory: pytest.TempPathFactory) -> Launcher:
    return Launcher(tmp_path_factory.mktemp("gpu"), LAUNCHES)


def gradient(launcher: Launcher, launch: str, step: str) -> torch.Tensor:
    (rank,) = launcher.ranks(launch, "algorithm_steps")
    tensors = reassemble([as_shards(rank[step][1])])
    return torch.cat([tensors[name].flatten() for name in sorted(tensors)])


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_gradients_and_figures_are_those_of_the_cpu(algorithm: str, launcher: Launcher) -> None:
    wanted = gradient(launcher, "cpu", f"{algorithm}/4")
    figures = launcher.ranks("cpu", "algorithm_steps")[0][f"{algorithm}/4"][0]
    for size in MICRO_BATCH_SIZES:
        assert relative_difference(gradient(launcher, "gpu", f"{algorithm}/{size}"), wanted) < TOLERANCE, size
        found = launcher.ranks("gpu", "algorithm_steps")[0][f"{algorithm}/{size}"][0]
        assert found == pytest.approx(figures, rel=1e-3, abs=1e-5)


def test_the_reference_says_the_same_for_ever_and_leaves_no_trace(launcher: Launcher) -> None:
    (rank,) = launcher.ranks("gpu", "reference")
    assert all(torch.equal(a, k) for a, k in zip(rank["asked"], rank["kept"], strict=True))
    assert all(torch.equal(a, m) for a, m in zip(rank["again"], rank["moved"], strict=True))
    pairs = zip(as_shards(rank["weights"]), as_shards(rank["weights_later"]), strict=True)
    assert all(torch.equal(before[3], after[3]) for before, after in pairs)
