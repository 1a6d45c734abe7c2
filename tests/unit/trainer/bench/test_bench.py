"""The bench of the losses on a small batch: what it reports, and that a wrong or slow loss is not let through."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from services.trainer.bench.batch import random_batch
from services.trainer.bench.cases import ALGORITHMS, BenchCase, make_case
from services.trainer.bench.main import MAX_DIFFERENCE, is_met, main
from services.trainer.bench.timing import CaseFigures, time_case

WITH_PEER = ("grpo", "dapo", "dr_grpo", "rloo", "gspo", "gspo_token", "cispo")


def small_case(name: str) -> BenchCase:
    return make_case(name, random_batch(4, 50, seed=1, device=torch.device("cpu")))


def figures_of(case: BenchCase) -> CaseFigures:
    return time_case(case, num_rounds=1, synchronize=lambda: None)


@pytest.mark.parametrize("name", WITH_PEER)
def test_ours_and_the_peers_agree_in_value_and_gradient(name: str) -> None:
    difference = figures_of(small_case(name)).largest_difference
    assert difference is not None
    assert difference <= MAX_DIFFERENCE


@pytest.mark.parametrize("name", sorted(set(ALGORITHMS) - set(WITH_PEER)))
def test_the_others_have_no_peer_and_a_gradient(name: str) -> None:
    case = small_case(name)
    assert case.peer is None
    gradients = torch.autograd.grad(case.run(), case.leaves)
    assert all(float(gradient.abs().sum()) > 0 for gradient in gradients)


def test_a_loss_that_differs_from_its_peer_does_not_pass() -> None:
    case = small_case("dapo")
    wrong = replace(case, run=lambda: 1.01 * case.run())
    assert not is_met(figures_of(wrong))


def test_a_loss_of_more_than_twelve_means_does_not_pass() -> None:
    figures = CaseFigures(
        name="x",
        num_bytes=1,
        read_ms=0.1,
        mean_ms=1.0,
        mean_full_ms=2.0,
        ours_ms=12.0,
        ours_full_ms=24.0,
        peer_full_ms=None,
        largest_difference=None,
    )
    assert (figures.passes, figures.full_passes) == (12.0, 12.0)
    assert is_met(figures)
    assert not is_met(replace(figures, ours_ms=12.1))
    assert not is_met(replace(figures, ours_full_ms=24.1))


def test_bytes_are_those_of_every_tensor_that_is_read() -> None:
    # logprobs, entropies, old, advantages and two weights of four bytes, and a mask of one
    assert small_case("dapo").num_bytes == 200 * (6 * 4 + 1)


def test_the_command_writes_a_row_for_every_loss(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "bench.json"
    exit_code = main(["--rows", "4", "--columns", "50", "--rounds", "1", "--json", str(path)])
    document = json.loads(path.read_text())
    assert [row["name"] for row in document["losses"]] == list(ALGORITHMS)
    assert exit_code == (0 if all(row["is_met"] for row in document["losses"]) else 1)
    assert document["options"] == {"rounds": 1, "rows": 4, "columns": 50, "device": "cpu", "seed": 0}
    assert "most passes" in capsys.readouterr().out


def test_an_unknown_device_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--device", "tpu"]) == 2
    assert capsys.readouterr().err == "furlong: error: --device is 'tpu'; give cpu or cuda\n"


def test_a_file_that_cannot_be_written_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "absent" / "bench.json"
    assert main(["--rows", "1", "--columns", "4", "--rounds", "1", "--json", str(path)]) == 2
    assert "furlong: error: --json" in capsys.readouterr().err
