import json
import time
from pathlib import Path

import pytest

from services.reward.failure_scores import FAILURE_RULES, failure_value
from services.reward.scorer import judge

_FOLDER = Path(__file__).parents[1] / "cases"
_FILES = sorted(_FOLDER.glob("*.jsonl"))
# A case takes a millisecond; the bound catches what stalls, also on a busy machine.
_LIMIT_SECONDS = 1.0


def read(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def label_text(label):
    """As the command and the service take labels: texts and numbers."""
    return str(label) if isinstance(label, str | int | float) else ""


@pytest.mark.parametrize("path", _FILES, ids=lambda path: path.stem)
def test_cases_have_their_scores(graders, path):
    wrong = []
    for case in read(path):
        started = time.monotonic()
        judgement = judge(graders[case["kind"]], prompt="", response=case["reply"], label=label_text(case["label"]))
        seconds = time.monotonic() - started
        value = failure_value(case["kind"]) if judgement.rule in FAILURE_RULES else judgement.value
        if value != pytest.approx(case["reward"]) or seconds > _LIMIT_SECONDS:
            wrong.append((case, judgement, seconds))
    assert wrong == []


def test_cases_go_in_both_directions_and_say_why():
    cases = [case for path in _FILES for case in read(path)]
    assert len(cases) >= 400
    assert all(case["source"] for case in cases)
    num_right = sum(case["reward"] > 0 for case in cases)
    assert 0.3 < num_right / len(cases) < 0.7
    keys = [(case["kind"], case["reply"], str(case["label"])) for case in cases]
    assert len(set(keys)) == len(keys)
