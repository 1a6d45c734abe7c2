"""Right verdicts of two graders on labelled cases, class by class."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from services.common.errors import ConfigError, InvalidInputError
from services.reward.worker_pool import WorkerPool
from services.reward.worker_process import GradeItem

# What math-verify is made for; it has no notion of the other graders' rules.
_COMPARABLE = ("boxed", "math")
_LONGEST_SECONDS = 600.0


@dataclass(frozen=True, kw_only=True)
class LabelledCase:
    """A reply with the verdict it deserves."""

    class_name: str
    """What kind of answer it is."""
    item: GradeItem
    """What is graded."""
    is_right: bool
    """The verdict."""


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """Right verdicts in one class."""

    num_cases: int
    """Cases of the class."""
    num_right: int
    """Right verdicts of the product's graders."""
    num_right_reference: int
    """Right verdicts of the reference."""


def read_cases(folder: Path) -> list[LabelledCase]:
    """The cases of all .jsonl files in the folder whose kind both graders know and whose label is a text.

    Raises:
        ConfigError: there are none.
        InvalidInputError: a line is no case.
    """
    cases = [
        case
        for path in sorted(folder.glob("*.jsonl"))
        for number, line in enumerate(path.read_text().splitlines(), start=1)
        if (case := _case(line, f"{path.name}:{number}", default_class=path.stem))
    ]
    if not cases:
        raise ConfigError(f"{folder} has no labelled cases; run the bench from a checkout, or give --cases FOLDER")
    return cases


def _case(line: str, source: str, *, default_class: str) -> LabelledCase | None:
    try:
        row = json.loads(line)
        kind, label = str(row["kind"]), row["label"]
        reward, response = float(row["reward"]), row["reply"]
    except (json.JSONDecodeError, KeyError, TypeError, ValueError) as error:
        raise InvalidInputError(f"{source}: is no case ({error!r}); wanted kind, reply, label and reward") from error
    if kind not in _COMPARABLE or not isinstance(label, str) or not isinstance(response, str):
        return None
    item = GradeItem(sample_id=source, grader=kind, prompt="", response=response, label=label)
    return LabelledCase(class_name=str(row.get("class", default_class)), item=item, is_right=reward > 0)


def agreement_by_class(cases: Sequence[LabelledCase], pool: WorkerPool, reference: WorkerPool) -> dict[str, Agreement]:
    """Right verdicts of both, by class in alphabetical order."""
    right, right_reference = _verdicts(cases, pool), _verdicts(cases, reference)
    table = {}
    for name in sorted({case.class_name for case in cases}):
        members = [index for index, case in enumerate(cases) if case.class_name == name]
        table[name] = Agreement(
            num_cases=len(members),
            num_right=sum(right[index] for index in members),
            num_right_reference=sum(right_reference[index] for index in members),
        )
    return table


def _verdicts(cases: Sequence[LabelledCase], pool: WorkerPool) -> list[bool]:
    scores = pool.submit([case.item for case in cases]).wait(timeout_seconds=_LONGEST_SECONDS)
    return [(score.value > 0) == case.is_right for case, score in zip(cases, scores, strict=True)]
