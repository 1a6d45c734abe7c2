"""What holds for the Megatron policy on a CPU holds on a GPU: the same tests, for one rank."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.integration import test_megatron_policy as on_cpu
from tests.integration.megatron_ranks.launcher import Launcher

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]

LAUNCHES = {name: replace(launch, device="cuda") for name, launch in on_cpu.LAUNCHES.items() if launch.world == 1}
OF_A_LAUNCH: tuple[tuple[Callable[[str, Launcher], None], tuple[str, ...]], ...] = (
    (on_cpu.test_values_and_gradients_are_those_of_transformers, ("one", "air-like")),
    (on_cpu.test_the_ranks_blocks_are_exactly_the_hub_files_tensors, ("one", "air-like")),
    (on_cpu.test_trunk_is_clipped_by_its_own_norm, ("one",)),
    (on_cpu.test_resuming_goes_on_bit_for_bit, ("one",)),
    (on_cpu.test_a_model_saved_alone_comes_back_and_has_no_optimizer, ("one",)),
    (on_cpu.test_asking_the_reference_changes_no_later_step, ("one", "bfloat16")),
    (on_cpu.test_policy_and_draft_learn_a_batch_by_heart, ("one", "bfloat16")),
)
OF_ONE_RANK: tuple[Callable[[Launcher], None], ...] = (
    on_cpu.test_the_mtp_loss_and_the_policy_loss_do_not_reach_each_other,
    on_cpu.test_an_incomplete_checkpoint_is_refused_and_changes_nothing,
    on_cpu.test_a_gradient_that_is_not_finite_takes_no_step,
)


@pytest.fixture(scope="module")
def launcher(tmp_path_factory: pytest.TempPathFactory) -> Launcher:
    return Launcher(tmp_path_factory.mktemp("gpu"), LAUNCHES)


@pytest.mark.parametrize(
    ("check", "launch"), [(check, launch) for check, launches in OF_A_LAUNCH for launch in launches]
)
def test_on_a_gpu(check: Callable[[str, Launcher], None], launch: str, launcher: Launcher) -> None:
    check(launch, launcher)


@pytest.mark.parametrize("check", OF_ONE_RANK)
def test_on_one_gpu(check: Callable[[Launcher], None], launcher: Launcher) -> None:
    check(launcher)
