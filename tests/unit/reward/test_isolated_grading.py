"""Workers that may open no file judge as the graders do in a process that may."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from services.reward.bench.agreement import read_cases
from services.reward.graders import GraderSettings
from services.reward.graders.library import EXAMPLES
from services.reward.metrics import RewardMetrics
from services.reward.worker_pool import WorkerPool
from services.reward.worker_process import GradeItem, WorkerLimits
from services.reward.worker_template import WORKER_COMMAND
from services.reward.zero_score_watch import ZeroScoreWatch

CASES = Path(__file__).parent / "cases"


@pytest.fixture(scope="module")
def pool() -> Iterator[WorkerPool]:
    metrics = RewardMetrics(CollectorRegistry())
    pool = WorkerPool(
        num_workers=1,
        settings=GraderSettings(require_single_box=False),
        # Generous: on a busy machine a slow verdict is no wrong one.
        limits=WorkerLimits(limit_seconds=20.0, memory_bytes=1024 * 1024 * 1024),
        max_pending_items=10_000,
        metrics=metrics,
        zero_watch=ZeroScoreWatch(metrics, window_samples=10_000),
        command=WORKER_COMMAND,
    )
    yield pool
    pool.close()


def test_every_operator_that_needs_the_library_is_read(pool: WorkerPool) -> None:
    items = [
        GradeItem(sample_id=command, grader="math", prompt="", response=rf"\boxed{{{answer}}}", label=label)
        for command, (answer, label) in EXAMPLES.items()
        # math-verify reads no double integral
        if command != "iint"
    ]
    scores = pool.submit(items).wait(timeout_seconds=100)
    assert {item.sample_id: score.value for item, score in zip(items, scores, strict=True)} == {
        item.sample_id: 1.0 for item in items
    }


def test_every_labelled_case_is_judged_right(pool: WorkerPool) -> None:
    cases = read_cases(CASES)
    scores = pool.submit([case.item for case in cases]).wait(timeout_seconds=250)
    wrong = [
        case.item.sample_id for case, score in zip(cases, scores, strict=True) if (score.value > 0) != case.is_right
    ]
    assert len(cases) > 1000
    assert wrong == []
