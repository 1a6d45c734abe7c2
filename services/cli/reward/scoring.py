"""`furlong reward score`: scores a file on worker processes and reports."""

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from prometheus_client import CollectorRegistry
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from services.cli.reward.report import explain, print_summary
from services.cli.reward.rows import Row, external_graders, read_rows
from services.common.errors import ConfigError, InvalidInputError
from services.common.records import Score
from services.reward.graders import GraderSettings
from services.reward.item_feed import scores_as_they_finish
from services.reward.metrics import RewardMetrics
from services.reward.worker_pool import WorkerPool
from services.reward.worker_process import WorkerLimits
from services.reward.zero_score_watch import ZeroScoreWatch

_ITEMS_IN_HAND = 64
_MAX_NAMED_LINES = 20


@dataclass(frozen=True, kw_only=True)
class ScoreOptions:
    """What the user asked for."""

    path: Path
    """The file of {prompt, reply, label}."""
    grader: str
    """Grader of lines that name none."""
    json_path: Path | None
    """Where the scores go, one JSON object a line; None writes none."""
    explain_line: int | None
    """Score only this line and say why; None scores all."""
    num_workers: int
    """Worker processes."""
    limit_seconds: float
    """Most time for one sample."""
    memory_limit_mb: int
    """Most memory of a worker above what it needs to start."""


def score_command(options: ScoreOptions) -> None:
    """Scores and reports.

    Raises:
        ConfigError: the file or OUT cannot be opened.
        InvalidInputError: the grader is unknown, or lines are bad: they are named once all others are scored.
    """
    external_graders(options.grader)
    rows = read_rows(options.path, grader=options.grader)
    console = Console()
    if options.explain_line is not None:
        row = _row_at(rows, options)
        [score] = score_rows([row], options)
        explain(console, row, score)
        return
    started = time.monotonic()
    scores = score_rows(rows, options)
    if options.json_path:
        _write_scores(options.json_path, scores)
    print_summary(console, rows, scores, seconds=time.monotonic() - started)
    _require_good_lines(rows, options.path)


def score_rows(rows: Sequence[Row], options: ScoreOptions) -> list[Score]:
    """One score per row, in order; a progress bar on standard error if that is a terminal."""
    scores = [row.score for row in rows]
    to_grade = [position for position, score in enumerate(scores) if score is None]
    console = Console(stderr=True)
    columns = (TextColumn("scoring"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("scoring", total=len(rows), completed=len(rows) - len(to_grade))
        if to_grade:
            pool = make_pool(options)
            try:
                items = (rows[position].item for position in to_grade)
                for scored in scores_as_they_finish(pool, items, max_in_hand=_ITEMS_IN_HAND):
                    scores[to_grade[scored.index]] = scored.score
                    progress.advance(task)
            finally:
                pool.close()
    complete = [score for score in scores if score is not None]
    assert len(complete) == len(rows), "every item has its score once"
    return complete


def make_pool(options: ScoreOptions) -> WorkerPool:
    """Workers with the options' graders and limits.

    Raises:
        InvalidInputError: there is no such grader.
        UnavailableError: a worker cannot start.
    """
    metrics = RewardMetrics(CollectorRegistry())
    return WorkerPool(
        num_workers=options.num_workers,
        settings=GraderSettings(require_single_box=False, external_graders=external_graders(options.grader)),
        limits=WorkerLimits(limit_seconds=options.limit_seconds, memory_bytes=options.memory_limit_mb * 1024 * 1024),
        max_pending_items=_ITEMS_IN_HAND,
        metrics=metrics,
        zero_watch=ZeroScoreWatch(metrics, window_samples=512),
    )


def _row_at(rows: Sequence[Row], options: ScoreOptions) -> Row:
    for row in rows:
        if row.number == options.explain_line:
            return row
    last = rows[-1].number if rows else 0
    raise InvalidInputError(
        f"{options.path}: line {options.explain_line} does not exist or is empty; wanted --explain from 1 to {last}"
    )


def _write_scores(path: Path, scores: Sequence[Score]) -> None:
    try:
        with path.open("w") as file:
            for score in scores:
                record = {
                    "value": score.value,
                    "extracted": score.extracted,
                    "rule": score.rule,
                    "seconds": round(score.seconds, 6),
                    "error": score.error,
                }
                file.write(json.dumps(record) + "\n")
    except OSError as error:
        raise ConfigError(f"--json {path}: cannot be written ({error.strerror}); give a file in a folder") from error


def _require_good_lines(rows: Sequence[Row], path: Path) -> None:
    bad = [row for row in rows if row.is_bad_line]
    if bad:
        first = bad[0].score.error if bad[0].score else ""
        numbers = ", ".join(str(row.number) for row in bad[:_MAX_NAMED_LINES])
        more = f" and {len(bad) - _MAX_NAMED_LINES} more" if len(bad) > _MAX_NAMED_LINES else ""
        raise InvalidInputError(f"{path}: {len(bad)} of {len(rows)} lines are bad ({numbers}{more}); {first}")
