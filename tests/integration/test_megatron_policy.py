"""The Megatron policy against transformers, against itself in other layouts, and over checkpoints.

Every rank is a process of its own (megatron_ranks/rank.py), because starting a policy changes torch process-wide; the
test process itself never imports megatron.
"""

import math

import pytest
import torch
from safetensors.torch import load_file

from tests.integration.megatron_ranks.launcher import Launch, Launcher, as_shards, largest_difference, whole
from tests.integration.megatron_ranks.reassembly import reassemble, relative_difference
from tests.integration.megatron_ranks.tiny_hub_model import DRAFT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

# Both sides are float32 sums in another order; the worst seen is 1.05e-6.
GRADIENT_TOLERANCE = 3e-6
CLIP_NORM = 8.0
NUM_LABELS = 80


LAUNCHES = {
    "one": Launch(
        cases=(
            "step",
            "weights",
            "parity",
            "detachment",
            "clip",
            "resume",
            "save",
            "model_alone",
            "broken_checkpoint",
            "non_finite",
            "learn",
            "reference_between_steps",
            "vocabulary_gradients",
        )
    ),
    "air-like": Launch(cases=("weights", "parity"), model="air-like"),
    "bfloat16": Launch(cases=("learn", "reference_between_steps"), dtype="bfloat16"),
    "tp2": Launch(
        cases=(
            *("step", "weights", "clip", "resume", "save", "load"),
            *("model_alone", "reference_between_steps", "vocabulary_gradients"),
        ),
        world=2,
        tp=2,
        loads="one",
    ),
    "dp2": Launch(
        cases=("step", "split", "idle_replica", "messages", "load", "reference_between_steps"), world=2, loads="tp2"
    ),
    "ep2": Launch(cases=("step", "weights", "resume", "load"), world=2, ep=2, loads="one"),
    "tp2-ep2": Launch(cases=("step", "weights"), world=2, tp=2, ep=2),
}


@pytest.fixture(scope="module")
def launcher(tmp_path_factory: pytest.TempPathFactory) -> Launcher:
    return Launcher(tmp_path_factory.mktemp("ranks"), LAUNCHES)


@pytest.mark.parametrize("launch", ["one", "air-like"])
def test_values_and_gradients_are_those_of_transformers(launch: str, launcher: Launcher) -> None:
    result = launcher.ranks(launch, "parity")[0]
    assert result["logprobs"] < 1e-5
    assert result["entropies"] < 1e-5
    assert len(result["gradients"]) == (28 if launch == "one" else 30)
    assert max(result["gradients"].values()) < GRADIENT_TOLERANCE
    found, wanted = result["mtp_loss"]
    assert found == pytest.approx(wanted, abs=1e-5)
    assert result["num_mtp_labels"] == NUM_LABELS - 8  # the last label of each sequence has no successor
    assert max(result["mtp_gradients"].values()) < GRADIENT_TOLERANCE


@pytest.mark.parametrize("launch", ["dp2", "tp2", "ep2", "tp2-ep2"])
def test_gradients_are_those_of_one_rank(launch: str, launcher: Launcher) -> None:
    ranks, wanted = launcher.ranks(launch, "step"), launcher.ranks("one", "step")
    assert largest_difference(whole(ranks, "gradients"), whole(wanted, "gradients")) < GRADIENT_TOLERANCE
    updates = [wanted[0]["figures"], *wanted[0]["later"]]
    for rank in ranks:
        for found, update in zip([rank["figures"], *rank["later"]], updates, strict=True):
            assert found["gradient_norm"] == pytest.approx(update["gradient_norm"], rel=1e-5)
            assert found["mtp_loss"] == pytest.approx(update["mtp_loss"], rel=1e-5)
            assert found["metric_sums"]["loss"] == pytest.approx(update["metric_sums"]["loss"], rel=1e-5)


def test_tensor_parallel_ranks_give_the_log_probabilities_of_one(launcher: Launcher) -> None:
    wanted = launcher.ranks("one", "step")[0]["statistics"]
    for rank in launcher.ranks("tp2", "step"):
        for found, values in zip(rank["statistics"], wanted, strict=True):
            torch.testing.assert_close(found, values, atol=1e-5, rtol=0)


@pytest.mark.parametrize("launch", ["one", "air-like", "tp2", "ep2", "tp2-ep2"])
def test_the_ranks_blocks_are_exactly_the_hub_files_tensors(launch: str, launcher: Launcher) -> None:
    found = whole(launcher.ranks(launch, "weights"), "weights")
    wanted = load_file(launcher.model(LAUNCHES[launch].model) / "model.safetensors")
    assert found.keys() == wanted.keys()
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)


def test_micro_batches_only_add_up(launcher: Launcher) -> None:
    for rank in launcher.ranks("dp2", "split"):
        figures, gradients = rank["whole"]
        for name in ("parts", "padded"):
            found_figures, found = rank[name]
            assert found_figures["mtp_loss"] == pytest.approx(figures["mtp_loss"], rel=1e-6)
            assert found_figures["gradient_norm"] == pytest.approx(figures["gradient_norm"], rel=1e-6)
            assert largest_difference(reassemble([found]), reassemble([gradients])) < GRADIENT_TOLERANCE


def test_a_replica_without_labels_changes_nothing(launcher: Launcher) -> None:
    ranks, wanted = launcher.ranks("dp2", "idle_replica"), launcher.ranks("one", "step")
    assert largest_difference(whole(ranks, "gradients"), whole(wanted, "gradients")) < GRADIENT_TOLERANCE
    assert all(rank["figures"]["metric_sums"]["micro_batches"] == 2.0 for rank in ranks)


def test_the_mtp_loss_and_the_policy_loss_do_not_reach_each_other(launcher: Launcher) -> None:
    ranks = launcher.ranks("one", "detachment")
    only_mtp, both = whole(ranks, "only_mtp"), whole(ranks, "both")
    for name, gradient in only_mtp.items():
        if name.startswith(DRAFT):
            assert gradient.any() or ".experts." in name, name
            assert torch.equal(gradient, both[name]), name
        else:
            assert not gradient.any(), name
    trunk = [gradient for name, gradient in both.items() if not name.startswith(DRAFT)]
    norm = math.sqrt(sum(float(gradient.norm()) ** 2 for gradient in trunk))
    assert ranks[0]["figures"]["gradient_norm"] == pytest.approx(norm, rel=1e-5)


@pytest.mark.parametrize("launch", ["one", "tp2"])
def test_trunk_is_clipped_by_its_own_norm(launch: str, launcher: Launcher) -> None:
    ranks, free = launcher.ranks(launch, "clip"), launcher.ranks("one", "step")
    norm = 10 * free[0]["figures"]["gradient_norm"]
    assert norm > 6 * CLIP_NORM
    assert ranks[0]["figures"]["gradient_norm"] == pytest.approx(norm, rel=1e-5)
    found = whole(ranks, "gradients")
    for name, gradient in whole(free, "gradients").items():
        # The MTP loss has its own count, and its norm of about 0.1 is not clipped.
        expected = gradient if name.startswith(DRAFT) else gradient * (10 * CLIP_NORM / norm)
        assert relative_difference(found[name], expected) < 1e-5, name


@pytest.mark.parametrize("launch", ["one", "tp2", "ep2"])
def test_resuming_goes_on_bit_for_bit(launch: str, launcher: Launcher) -> None:
    for rank in launcher.ranks(launch, "resume"):
        straight = _blocks(rank["straight"])
        assert _equal(_blocks(rank["resumed"]), straight)
        assert _equal(_blocks(rank["restarted"]), straight)
        # Without its moments the optimizer takes other steps.
        assert not _equal(_blocks(rank["forgetful"]), straight)
        assert set(rank["step_counts"]) == {2.0}
        assert rank["num_children"] == 0


@pytest.mark.parametrize("launch", ["tp2", "dp2"])
def test_a_checkpoint_moves_to_another_layout(launch: str, launcher: Launcher) -> None:
    before, after = launcher.ranks(LAUNCHES[launch].loads, "save"), launcher.ranks(launch, "load")
    assert after[0]["error"] == "no error"
    assert largest_difference(whole(after, "saved"), whole(before, "saved")) == 0.0
    assert largest_difference(whole(after, "next"), whole(before, "next")) < 1e-4


def test_experts_move_to_other_ranks_without_the_optimizer(launcher: Launcher) -> None:
    before, after = launcher.ranks("one", "save"), launcher.ranks("ep2", "load")
    assert largest_difference(whole(after, "saved"), whole(before, "saved")) == 0.0
    assert "saved with ep 1, but this run has ep 2" in after[0]["error"]


@pytest.mark.parametrize("launch", ["one", "tp2"])
def test_a_model_saved_alone_comes_back_and_has_no_optimizer(launch: str, launcher: Launcher) -> None:
    for rank in launcher.ranks(launch, "model_alone"):
        assert rank["error"].endswith("was saved without an optimizer; load it without one")
        assert _equal(_blocks(rank["loaded"]), _blocks(rank["saved"]))


def test_an_incomplete_checkpoint_is_refused_and_changes_nothing(launcher: Launcher) -> None:
    result = launcher.ranks("one", "broken_checkpoint")[0]
    for error in result["errors"]:
        assert error.startswith("InvalidInputError: ")
        assert "holds no complete checkpoint" in error
    assert _equal(_blocks(result["after"]), _blocks(result["before"]))


def test_a_gradient_that_is_not_finite_takes_no_step(launcher: Launcher) -> None:
    result = launcher.ranks("one", "non_finite")[0]
    assert result["error"].startswith("StateConflictError: gradient norm of the trunk is ")
    assert _equal(_blocks(result["after"]), _blocks(result["before"]))


@pytest.mark.parametrize("launch", ["one", "bfloat16", "dp2", "tp2"])
def test_asking_the_reference_changes_no_later_step(launch: str, launcher: Launcher) -> None:
    for rank in launcher.ranks(launch, "reference_between_steps"):
        assert _equal(_blocks(rank["interrupted"]), _blocks(rank["straight"]))
        straight, interrupted = rank["step_counts"]
        assert set(interrupted) == set(straight) == {4.0}
        assert all(torch.equal(asked, rank["kept"]) for asked in rank["asked"])
        assert not torch.equal(rank["moved"], rank["kept"])


@pytest.mark.parametrize("launch", ["one", "tp2"])
def test_a_split_vocabulary_has_the_gradients_of_a_whole_one(launch: str, launcher: Launcher) -> None:
    for rank in launcher.ranks(launch, "vocabulary_gradients"):
        assert rank.keys() == {f"{loss}/{size}" for loss in ("logprobs", "entropies", "both") for size in (61, 20)}
        for name, (values, gradients, padding) in rank.items():
            assert values < 1e-5, name
            assert gradients < 2e-6, name
            assert padding == 0.0, name


def test_ranks_exchange_bytes_and_numbers(launcher: Launcher) -> None:
    first, second = launcher.ranks("dp2", "messages")
    assert first["broadcast"] == second["broadcast"] == b"\x00order".hex()
    assert first["empty"] == second["empty"] == ""
    assert first["gathered"] == ["", "01"]
    assert second["gathered"] is None
    assert first["sums"] == second["sums"] == {"a": 2.0, "b": pytest.approx(1.2)}
    assert first["no_sums"] == {}


@pytest.mark.parametrize("launch", ["one", "bfloat16"])
def test_policy_and_draft_learn_a_batch_by_heart(launch: str, launcher: Launcher) -> None:
    result = launcher.ranks(launch, "learn")[0]
    first, last = result["first"], result["last"]
    # Random weights guess about one in 64.
    assert first["metric_sums"]["loss"] / NUM_LABELS == pytest.approx(math.log(64), rel=0.3)
    assert last["metric_sums"]["loss"] / NUM_LABELS < 0.1
    assert first["mtp_loss"] == pytest.approx(math.log(64), rel=0.3)
    assert last["mtp_loss"] < 0.1


def _blocks(value: object) -> list[torch.Tensor]:
    return [block for _, _, _, block in as_shards(value)]


def _equal(found: list[torch.Tensor], wanted: list[torch.Tensor]) -> bool:
    return all(torch.equal(one, other) for one, other in zip(found, wanted, strict=True))
