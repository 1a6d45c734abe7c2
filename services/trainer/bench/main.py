"""`furlong bench algorithms`: every policy loss beside the limit, a plain masked mean and a peer, in one run."""

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from services.common.errors import ConfigError, FurlongError
from services.trainer.bench.batch import random_batch
from services.trainer.bench.cases import ALGORITHMS, make_case
from services.trainer.bench.timing import CaseFigures, time_case

MAX_PASSES = 12.0
"""A loss may cost so many plain masked means over what it reads."""
MAX_DIFFERENCE = 1e-4
"""Relative difference to the peer, whose sums are in another order."""
_TABLE_WIDTH = 104


def main(argv: Sequence[str] | None = None) -> int:
    """Measures and prints; 0 when every loss meets the targets, 1 when one does not, 2 for input that cannot work."""
    arguments = _parse(argv)
    try:
        figures = _measure(arguments)
        _print(figures, arguments)
        if arguments.json:
            _write(arguments.json, figures, arguments)
    except FurlongError as error:
        sys.stderr.write(f"furlong: error: {error}\n")
        return 2
    except KeyboardInterrupt:
        return 130
    return 0 if all(is_met(row) for row in figures) else 1


def is_met(figures: CaseFigures) -> bool:
    """Whether a row meets the targets: passes forward and with gradient, and agreement with its peer."""
    agrees = figures.largest_difference is None or figures.largest_difference <= MAX_DIFFERENCE
    return agrees and max(figures.passes, figures.full_passes) <= MAX_PASSES


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="furlong bench algorithms")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--columns", type=int, default=4096)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args(argv)


def _measure(arguments: argparse.Namespace) -> list[CaseFigures]:
    device = _device(arguments.device)
    synchronize: Callable[[], None] = torch.cuda.synchronize if device.type == "cuda" else _nothing
    if device.type == "cpu":
        # As a trainer rank on a CPU runs.
        torch.set_num_threads(1)
    batch = random_batch(arguments.rows, arguments.columns, seed=arguments.seed, device=device)
    figures = []
    with Console(stderr=True).status("preparing") as status:
        for name in ALGORITHMS:
            status.update(f"timing {name}, {arguments.rounds} rounds")
            figures.append(time_case(make_case(name, batch), num_rounds=arguments.rounds, synchronize=synchronize))
    return figures


def _nothing() -> None:
    pass


def _device(name: str) -> torch.device:
    if name not in ("cpu", "cuda"):
        raise ConfigError(f"--device is {name!r}; give cpu or cuda")
    if name == "cuda" and not torch.cuda.is_available():
        raise ConfigError('--device is "cuda", but torch finds no CUDA device; give --device cpu')
    return torch.device(name)


def _print(figures: Sequence[CaseFigures], arguments: argparse.Namespace) -> None:
    size = f"{arguments.rows} x {arguments.columns} tokens, {arguments.device}"
    table = Table(
        title=f"{size}: medians of {arguments.rounds} rounds, in ms",
        caption="read: the limit; mean: one masked mean over the same tensors; +: with gradient; x: ours / mean",
    )
    for heading in ("loss", "read", "mean", "ours", "x", "mean +", "peer +", "ours +", "x +", "differs"):
        table.add_column(heading, justify="left" if heading == "loss" else "right", no_wrap=heading != "loss")
    for row in figures:
        table.add_row(
            row.name,
            *(f"{value:.2f}" for value in (row.read_ms, row.mean_ms, row.ours_ms)),
            f"{row.passes:.1f}",
            f"{row.mean_full_ms:.2f}",
            "-" if row.peer_full_ms is None else f"{row.peer_full_ms:.2f}",
            f"{row.ours_full_ms:.2f}",
            f"{row.full_passes:.1f}",
            "-" if row.largest_difference is None else f"{row.largest_difference:.0e}",
        )
    console = Console(width=max(_TABLE_WIDTH, Console().width))
    console.print(table)
    worst = max(figures, key=lambda row: max(row.passes, row.full_passes))
    mark = "[green]met[/green]" if all(is_met(row) for row in figures) else "[red]not met[/red]"
    most = max(worst.passes, worst.full_passes)
    console.print(f"{mark}  most passes: {most:.1f}, {worst.name} (wanted at most {MAX_PASSES:.0f})", highlight=False)


def _write(path: Path, figures: Sequence[CaseFigures], arguments: argparse.Namespace) -> None:
    document = {
        "options": {name: value for name, value in vars(arguments).items() if name != "json"},
        "versions": {"python": sys.version.split()[0], "torch": torch.__version__},
        "targets": {"max_passes": MAX_PASSES, "max_difference": MAX_DIFFERENCE},
        "losses": [
            {**asdict(row), "passes": row.passes, "full_passes": row.full_passes, "is_met": is_met(row)}
            for row in figures
        ],
    }
    try:
        path.write_text(json.dumps(document, indent=2) + "\n")
    except OSError as error:
        raise ConfigError(f"--json {path}: cannot be written ({error.strerror}); give a file in a folder") from error


if __name__ == "__main__":
    sys.exit(main())
