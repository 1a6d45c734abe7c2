"""`furlong reward audit` on labels that a grader can and cannot tell apart."""

import json
from pathlib import Path

import pytest

from services.cli.reward.auditing import audit_command
from services.cli.reward.scoring import ScoreOptions
from services.common.errors import InvalidInputError


def options(path: Path, *, grader: str = "boxed") -> ScoreOptions:
    return ScoreOptions(
        path=path,
        grader=grader,
        json_path=path.with_suffix(".out"),
        explain_line=None,
        num_workers=1,
        limit_seconds=1.0,
        memory_limit_mb=256,
    )


def write(path: Path, *labels: object) -> Path:
    path.write_text("".join(json.dumps({"label": label}) + "\n" for label in labels))
    return path


def test_labels_that_the_grader_tells_apart_pass(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "labels.jsonl", "34", r"\frac{1}{2}", 12000)
    assert audit_command(options(path)) == 0
    document = json.loads(path.with_suffix(".out").read_text())
    assert document["findings"] == []
    assert (document["num_checked"]["itself"], document["num_checked"]["neighbour"]) == (3, 3)
    assert document["num_checked"]["thousands commas"] == 1  # 12,000
    assert "3 labels" in capsys.readouterr().out


def test_a_grader_without_understanding_is_found_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "labels.jsonl", "34", "0.5")
    assert audit_command(options(path, grader="exact:boxed")) == 1
    findings = json.loads(path.with_suffix(".out").read_text())["findings"]
    assert ("34", r"\frac{68}{2}", 0.0) in [(f["label"], f["answer"], f["value"]) for f in findings]
    assert r"label 1, doubled fraction: '34' against '\\frac{68}{2}' scores 0" in capsys.readouterr().out


def test_a_line_without_a_label_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match=r"labels\.jsonl:2: has no label; wanted an object with a label"):
        audit_command(options(write(tmp_path / "labels.jsonl", "34", None)))
    with pytest.raises(InvalidInputError, match="has no lines"):
        audit_command(options(write(tmp_path / "empty.jsonl")))
