"""`furlong reward audit`: does a grader credit every label of a file for itself, and not for its neighbour?"""

import json
from collections import Counter
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from services.cli.reward.rows import read_labels
from services.cli.reward.scoring import ScoreOptions, make_pool
from services.common.errors import ConfigError
from services.reward.audit import AuditReport, audit_labels
from services.reward.scorer import Judgement, Rule
from services.reward.worker_pool import WorkerPool
from services.reward.worker_process import GradeItem

_LONGEST_SECONDS = 60.0
_MAX_SHOWN = 20


def audit_command(options: ScoreOptions) -> int:
    """Audits the labels of the file, prints counts and findings, writes both to json_path; 1 when something is wrong.

    Raises:
        ConfigError: the file or OUT cannot be opened.
        InvalidInputError: the grader is unknown, or a line has no label.
    """
    labels = read_labels(options.path)
    pool = make_pool(options)
    try:
        with Console(stderr=True).status(f"auditing {len(labels)} labels"):
            report = audit_labels(labels, _PooledGrader(pool, options.grader))
    finally:
        pool.close()
    _print(report, num_labels=len(labels))
    if options.json_path:
        _write(options.json_path, report)
    return 1 if report.findings else 0


class _PooledGrader:
    """A Grader whose work is done by a worker, so that a label that hangs it costs one time limit."""

    def __init__(self, pool: WorkerPool, name: str) -> None:
        self._pool = pool
        self._name = name

    def grade(self, *, prompt: str, response: str, label: str) -> Judgement:
        """See Grader.grade."""
        item = GradeItem(sample_id="", grader=self._name, prompt=prompt, response=response, label=label)
        [score] = self._pool.submit([item]).wait(timeout_seconds=_LONGEST_SECONDS)
        return Judgement(value=score.value, rule=Rule(score.rule), extracted=score.extracted, error=score.error)


def _print(report: AuditReport, *, num_labels: int) -> None:
    console = Console()
    wrong = Counter(finding.check for finding in report.findings)
    table = Table(title=f"{num_labels} labels")
    for heading in ("check", "scores", "wrong"):
        table.add_column(heading, justify="left" if heading == "check" else "right")
    for check, count in report.num_checked.items():
        table.add_row(check, str(count), str(wrong[check]))
    table.add_section()
    table.add_row("all", str(report.num_checked.total()), str(len(report.findings)))
    console.print(table)
    for finding in report.findings[:_MAX_SHOWN]:
        console.print(
            escape(
                f"label {finding.row + 1}, {finding.check}: {finding.label!r} against {finding.answer!r} "
                f"scores {finding.value:g}"
            ),
            highlight=False,
            soft_wrap=True,
        )
    if len(report.findings) > _MAX_SHOWN:
        console.print(f"and {len(report.findings) - _MAX_SHOWN} more; --json OUT has all of them", highlight=False)


def _write(path: Path, report: AuditReport) -> None:
    document = {
        "num_checked": dict(report.num_checked),
        "findings": [asdict(finding) for finding in report.findings],
    }
    try:
        path.write_text(json.dumps(document, indent=2) + "\n")
    except OSError as error:
        raise ConfigError(f"--json {path}: cannot be written ({error.strerror}); give a file in a folder") from error
