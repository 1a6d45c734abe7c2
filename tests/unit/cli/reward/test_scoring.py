"""`furlong reward score` on files good and bad."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from services.cli.reward.rows import read_rows
from services.cli.reward.scoring import ScoreOptions, score_command
from services.common.errors import ConfigError, InvalidInputError

RIGHT = {"prompt": "What is 30 + 4?", "reply": r"</think>\boxed{34}", "label": "34"}


def write(path: Path, *lines: object) -> Path:
    path.write_bytes(b"\n".join(line if isinstance(line, bytes) else json.dumps(line).encode() for line in lines))
    return path


def options(path: Path, **changes: object) -> ScoreOptions:
    values: dict[str, object] = {
        "path": path,
        "grader": "boxed",
        "json_path": None,
        "explain_line": None,
        "num_workers": 2,
        "limit_seconds": 1.0,
        "memory_limit_mb": 256,
    }
    return ScoreOptions(**{**values, **changes})  # type: ignore[arg-type]


def scores_of(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_scores_come_one_a_line_in_order(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{**RIGHT, "label": str(34 + number % 2)} for number in range(200)]
    out = tmp_path / "out.jsonl"
    score_command(options(write(tmp_path / "in.jsonl", *rows), json_path=out))
    scores = scores_of(out)
    assert [score["value"] for score in scores] == [1.0, 0.0] * 100
    assert {key: scores[0][key] for key in ("extracted", "rule", "error")} == {
        "extracted": "34",
        "rule": "string",
        "error": "",
    }
    assert 0 < float(str(scores[0]["seconds"])) < 1
    printed = capsys.readouterr().out
    assert "200 samples" in printed
    assert "│ right (accuracy)   │     100 │ 50.0% │" in printed
    assert "│ decided by string  │     100 │ 50.0% │" in printed
    assert "│ decided by numeric │     100 │ 50.0% │" in printed


@pytest.mark.parametrize(
    ("label", "error"),
    [
        (None, "label is null; wanted text or a number"),
        (["34"], 'label is ["34"]; wanted text or a number'),
        (True, "label is true; wanted text or a number"),
        ({}, "label is {}; wanted text or a number"),
        ("", "the label is blank; give the right answer"),
    ],
)
def test_bad_label_is_a_score_with_an_error(tmp_path: Path, label: object, error: str) -> None:
    out = tmp_path / "out.jsonl"
    score_command(options(write(tmp_path / "in.jsonl", {**RIGHT, "label": label}, RIGHT), json_path=out))
    bad, good = scores_of(out)
    assert (bad["value"], bad["rule"], bad["error"]) == (0.0, "bad_label", error)
    assert good["value"] == 1.0


def test_number_labels_keep_their_digits(tmp_path: Path) -> None:
    path = write(
        tmp_path / "in.jsonl",
        rb'{"reply": "\\boxed{12345678901234567891}", "label": 12345678901234567890}',
        rb'{"reply": "\\boxed{12345678901234567890}", "label": 12345678901234567890}',
        rb'{"reply": "\\boxed{0}", "label": 0}',
    )
    out = tmp_path / "out.jsonl"
    score_command(options(path, json_path=out))
    assert [score["value"] for score in scores_of(out)] == [0.0, 1.0, 1.0]


def test_nothing_right_beside_boxed_answers_is_pointed_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "in.jsonl", {**RIGHT, "reply": r"<think>\boxed{34}"}, {**RIGHT, "reply": "no idea"})
    score_command(options(path))
    assert "no score is positive although 1 replies have boxed answers" in capsys.readouterr().out


def test_bad_lines_are_named_once_all_others_are_scored(tmp_path: Path) -> None:
    path = write(
        tmp_path / "in.jsonl", RIGHT, b"{oops", RIGHT, b"", [1], {"label": "1"}, b"\xff", {**RIGHT, "grader": "x"}
    )
    out = tmp_path / "out.jsonl"
    with pytest.raises(InvalidInputError, match=r"5 of 7 lines are bad \(2, 5, 6, 7, 8\); line 2: is no JSON"):
        score_command(options(path, json_path=out))
    scores = scores_of(out)
    assert [score["value"] for score in scores] == [1.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0]
    assert [str(score["error"])[:24] for score in scores] == [
        "",
        "line 2: is no JSON (Expe",
        "",
        'line 5: is ["1"]; wanted',
        "line 6: has no reply; wa",
        "line 7: is no UTF-8 text",
        "line 8: grader is 'x'; w",
    ]


def test_reply_that_is_no_text_is_an_error_of_its_sample(tmp_path: Path) -> None:
    [row] = read_rows(write(tmp_path / "in.jsonl", {**RIGHT, "reply": None}), grader="boxed")
    assert row.score
    assert (row.score.value, row.score.rule, row.score.error) == (0.0, "error", "reply is null; wanted text")
    assert not row.is_bad_line


def test_lines_may_name_their_graders_and_mixes_and_functions_are_graders(tmp_path: Path) -> None:
    path = write(
        tmp_path / "in.jsonl",
        {"reply": "Answer: 35", "label": "34", "grader": "dapo"},
        {"reply": "Answer: 34", "label": None, "grader": "dapo"},
        {"reply": r"\boxed{34}", "label": "34", "grader": "mix:0.5*math,0.25*format"},
        {**RIGHT, "grader": "operator:concat"},
        {"reply": "a", "label": "b"},
    )
    out = tmp_path / "out.jsonl"
    with pytest.raises(
        InvalidInputError, match=r"1 of 5 lines are bad \(4\); line 4: grader 'operator:concat' reaches out"
    ):
        score_command(options(path, json_path=out, grader="math"))
    scores = scores_of(out)
    assert [score["value"] for score in scores] == [-1.0, -1.0, 0.75, 0.0, 0.0]
    assert [score["rule"] for score in scores] == ["numeric", "bad_label", "mix", "error", "no_answer"]


def test_function_of_the_users_grades(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_grader.py").write_text(
        "def half(*, prompt, response, label):\n    return 0.5 * (label in response)\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    out = tmp_path / "out.jsonl"
    score_command(
        options(write(tmp_path / "in.jsonl", RIGHT, {**RIGHT, "label": "7"}), json_path=out, grader="my_grader:half")
    )
    assert [(score["value"], score["rule"]) for score in scores_of(out)] == [(0.5, "custom"), (0.0, "custom")]


def test_one_row_is_explained(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "in.jsonl", b"broken", {**RIGHT, "reply": "[b]\ud800 \\boxed{35}"})
    score_command(options(path, explain_line=2))
    printed = capsys.readouterr().out
    for text in ("line 2", "What is 30 + 4?", r"[b]\ud800 \boxed{35}", "numeric: compared as exact numbers", "│ 35 "):
        assert text in printed
    with pytest.raises(InvalidInputError, match="line 3 does not exist or is empty; wanted --explain from 1 to 2"):
        score_command(options(path, explain_line=3))


def test_wrong_options_say_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="grader is 'guess'; wanted one of boxed"):
        score_command(options(tmp_path / "in.jsonl", grader="guess"))
    with pytest.raises(ConfigError, match="cannot be read"):
        score_command(options(tmp_path / "absent.jsonl"))
    with pytest.raises(ConfigError, match="cannot be written"):
        score_command(options(write(tmp_path / "in.jsonl", RIGHT), json_path=tmp_path / "absent" / "out"))


def test_command_line_with_examples_in_its_help(tmp_path: Path) -> None:
    def furlong(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "services.cli.main", "reward", *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    path = write(tmp_path / "in.jsonl", RIGHT, b"broken")
    done = furlong("score", str(path), "--grader", "boxed", "--json", str(tmp_path / "out"))
    assert done.returncode == 2
    assert done.stderr.startswith(f"furlong: error: {path}: 1 of 2 lines are bad (2); line 2: is no JSON")
    assert [score["value"] for score in scores_of(tmp_path / "out")] == [1.0, 0.0]
    helped = furlong("score", "--help")
    assert helped.returncode == 0
    assert "./furlong reward score replies.jsonl --grader math" in helped.stdout
    assert "score" in furlong().stdout
