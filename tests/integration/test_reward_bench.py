"""`furlong bench reward` from one end to the other, on few samples."""

import json
from pathlib import Path

import pytest

from services.cli.bench.reward import BenchOptions, bench_command
from services.common.errors import ConfigError, InvalidInputError

CASES = [
    {"kind": "boxed", "class": "integers", "reply": r"</think>\boxed{34}", "label": "34", "reward": 1},
    {"kind": "boxed", "class": "integers", "reply": r"</think>\boxed{35}", "label": "34", "reward": 0},
    {"kind": "boxed", "class": "text", "reply": r"</think>\boxed{London}", "label": "Paris", "reward": 0},
    {"kind": "dapo", "class": "text", "reply": "Answer: 1", "label": "1", "reward": 1},
    {"kind": "boxed", "class": "labels", "reply": r"</think>\boxed{1}", "label": None, "reward": 0},
]


def options(tmp_path: Path) -> BenchOptions:
    return BenchOptions(
        json_path=tmp_path / "bench.json",
        num_samples=100,
        num_rounds=1,
        num_workers=1,
        limit_seconds=0.5,
        seed=0,
        cases_folder=tmp_path,
    )


@pytest.mark.slow
def test_bench_reports_both_graders_and_the_targets(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "cases.jsonl").write_text("".join(json.dumps(case) + "\n" for case in CASES))
    bench_command(options(tmp_path))
    document = json.loads((tmp_path / "bench.json").read_text())
    assert list(document["mixes"]) == ["plain integers", "mixed expressions", "1 % poison"]
    integers = document["mixes"]["plain integers"]
    assert integers["rate_ratio"] == pytest.approx(
        integers["furlong"]["samples_per_second_per_core"] / integers["math_verify"]["samples_per_second_per_core"]
    )
    assert integers["rate_ratio"] > 1
    assert integers["furlong"]["wrong_verdict_share"] == 0
    assert document["agreement"] == {
        "integers": {"num_cases": 2, "num_right": 2, "num_right_reference": 2},
        "text": {"num_cases": 1, "num_right": 1, "num_right_reference": 1},
    }
    assert len(document["targets"]) == 5
    printed = capsys.readouterr().out
    assert "math-verify" in printed
    assert "rate on plain integers over the reference's" in printed


def test_bench_without_cases_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="has no labelled cases; run the bench from a checkout, or give --cases"):
        bench_command(options(tmp_path))
    (tmp_path / "cases.jsonl").write_text('{"kind": "boxed"}\n')
    with pytest.raises(InvalidInputError, match=r"cases\.jsonl:1: is no case"):
        bench_command(options(tmp_path))
