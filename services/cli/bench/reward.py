"""`furlong bench reward`: the graders of the product and math-verify by turns, on workers of the same kind."""

import json
import random
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from prometheus_client import CollectorRegistry
from rich.console import Console
from rich.table import Table

from services.common.errors import ConfigError
from services.reward.bench.agreement import Agreement, agreement_by_class, read_cases
from services.reward.bench.figures import MixFigures, Target, figures_of, targets_of
from services.reward.bench.mixes import MIXES
from services.reward.bench.timing import Round, run_round
from services.reward.graders import GraderSettings
from services.reward.metrics import RewardMetrics
from services.reward.worker_pool import WorkerPool
from services.reward.worker_process import WorkerLimits
from services.reward.worker_template import WORKER_COMMAND
from services.reward.zero_score_watch import ZeroScoreWatch

MATH_VERIFY_COMMAND = (sys.executable, "-m", "services.reward.bench.math_verify_worker")
_MEMORY_BYTES = 1024 * 1024 * 1024
_MAX_PENDING_ITEMS = 100_000
Figures = Mapping[str, tuple[MixFigures, MixFigures]]
"""Per mix: the product's figures and math-verify's."""


@dataclass(frozen=True, kw_only=True)
class BenchOptions:
    """What the user asked for."""

    json_path: Path | None
    """Where the figures go; None writes none."""
    num_samples: int
    """Samples of a mix per round."""
    num_rounds: int
    """Rounds per mix and grader."""
    num_workers: int
    """Workers of each grader."""
    limit_seconds: float
    """Most time for one sample."""
    seed: int
    """Seed of the mixes."""
    cases_folder: Path
    """Labelled cases."""


def bench_command(options: BenchOptions) -> None:
    """Measures, prints, and writes the figures.

    Raises:
        ConfigError: math-verify is not installed, there are no cases, or the file cannot be written.
    """
    if find_spec("math_verify") is None:
        raise ConfigError(
            "math-verify is not installed in this Python; run ./furlong again, which installs it into .venv"
        )
    cases = read_cases(options.cases_folder)
    console = Console(stderr=True)
    with _pool(WORKER_COMMAND, options) as pool, _pool(MATH_VERIFY_COMMAND, options) as reference:
        with console.status("comparing verdicts"):
            agreement = agreement_by_class(cases, pool, reference)
        figures = {}
        for name in MIXES:
            with console.status(f"timing {name}, {options.num_rounds} rounds"):
                ours, theirs = _alternating_rounds(name, pool, reference, options)
            figures[name] = (
                figures_of(ours, num_workers=options.num_workers),
                figures_of(theirs, num_workers=options.num_workers),
            )
    targets = targets_of(figures, agreement, limit_seconds=options.limit_seconds)
    _print(figures, agreement, targets)
    if options.json_path:
        _write(options, figures, agreement, targets)


def _alternating_rounds(
    name: str, pool: WorkerPool, reference: WorkerPool, options: BenchOptions
) -> tuple[list[Round], list[Round]]:
    """Both graders see the same samples in every round; who goes first changes from round to round."""
    ours: list[Round] = []
    theirs: list[Round] = []
    order = [(pool, ours), (reference, theirs)]
    for number in range(options.num_rounds):
        samples = MIXES[name](options.num_samples, random.Random(f"{options.seed} {name} {number}"))
        for measured, rounds in order if number % 2 == 0 else reversed(order):
            rounds.append(run_round(measured, samples, grader="math", num_clients=options.num_workers))
    return ours, theirs


@contextmanager
def _pool(command: tuple[str, ...], options: BenchOptions) -> Iterator[WorkerPool]:
    metrics = RewardMetrics(CollectorRegistry())
    pool = WorkerPool(
        num_workers=options.num_workers,
        settings=GraderSettings(require_single_box=False),
        limits=WorkerLimits(limit_seconds=options.limit_seconds, memory_bytes=_MEMORY_BYTES),
        max_pending_items=_MAX_PENDING_ITEMS,
        metrics=metrics,
        zero_watch=ZeroScoreWatch(metrics, window_samples=_MAX_PENDING_ITEMS),
        command=command,
    )
    try:
        yield pool
    finally:
        pool.close()


def _print(figures: Figures, agreement: Mapping[str, Agreement], targets: Sequence[Target]) -> None:
    console = Console()
    console.print(_speed_table(figures))
    console.print(_agreement_table(agreement))
    for target in targets:
        mark = "[green]met[/green]" if target.is_met else "[red]not met[/red]"
        console.print(f"{mark}  {target.name}: {target.seen:.2f} (wanted {target.wanted})", highlight=False)


def _speed_table(figures: Figures) -> Table:
    table = Table(
        title="medians over the rounds", caption="others: p99 ms without poison; late: timeouts; wrong: wrong verdicts"
    )
    for heading in ("mix", "grader", "1/s, core", "p50 ms", "p99 ms", "others", "late", "wrong"):
        table.add_column(heading, justify="left" if heading in ("mix", "grader") else "right", no_wrap=True)
    for mix, pair in figures.items():
        for grader, of_grader in zip(("furlong", "math-verify"), pair, strict=True):
            table.add_row(
                mix,
                grader,
                f"{of_grader.samples_per_second_per_core:.0f}",
                f"{of_grader.p50_ms:.2f}",
                f"{of_grader.p99_ms:.2f}",
                f"{of_grader.p99_without_poison_ms:.2f}",
                str(of_grader.num_timeouts),
                f"{of_grader.wrong_verdict_share:.1%}",
            )
        table.add_section()
    return table


def _agreement_table(agreement: Mapping[str, Agreement]) -> Table:
    table = Table(title="right verdicts on labelled cases")
    for heading in ("class", "cases", "furlong", "math-verify"):
        table.add_column(heading, justify="left" if heading == "class" else "right")
    for name, row in agreement.items():
        table.add_row(name, str(row.num_cases), str(row.num_right), str(row.num_right_reference))
    table.add_section()
    table.add_row(
        "all",
        str(sum(row.num_cases for row in agreement.values())),
        str(sum(row.num_right for row in agreement.values())),
        str(sum(row.num_right_reference for row in agreement.values())),
    )
    return table


def _write(
    options: BenchOptions, figures: Figures, agreement: Mapping[str, Agreement], targets: Sequence[Target]
) -> None:
    assert options.json_path
    document = {
        "options": {
            "samples": options.num_samples,
            "rounds": options.num_rounds,
            "workers": options.num_workers,
            "limit_seconds": options.limit_seconds,
            "seed": options.seed,
        },
        "versions": {"python": sys.version.split()[0], "math-verify": version("math-verify")},
        "mixes": {
            name: {
                "furlong": asdict(ours),
                "math_verify": asdict(theirs),
                "rate_ratio": ours.samples_per_second_per_core / theirs.samples_per_second_per_core,
            }
            for name, (ours, theirs) in figures.items()
        },
        "agreement": {name: asdict(row) for name, row in agreement.items()},
        "targets": [asdict(target) for target in targets],
    }
    try:
        options.json_path.write_text(json.dumps(document, indent=2) + "\n")
    except OSError as error:
        raise ConfigError(
            f"--json {options.json_path}: cannot be written ({error.strerror}); give a file in a folder"
        ) from error
