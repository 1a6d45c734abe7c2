"""The commands below `furlong bench`."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

bench_app = typer.Typer(name="bench", help="Measure a part beside its reference, on this machine.")


@bench_app.command(
    epilog="Examples:\n\n./furlong bench reward\n\n./furlong bench reward --json reward.json --rounds 7 --workers 2"
)
def reward(
    json_path: Annotated[
        Path | None, typer.Option("--json", metavar="F", help="Write all figures to this file, too.")
    ] = None,
    samples: Annotated[int, typer.Option(min=100, help="Samples of a mix per round.")] = 1000,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds; graders take turns and medians count.")] = 5,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Workers of each grader (default: cores - 1, at least 1).")
    ] = None,
    limit_seconds: Annotated[float, typer.Option(min=0.05, help="Most time for one sample.")] = 1.0,
    seed: Annotated[int, typer.Option(help="Seed of the mixes.")] = 0,
    cases: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Labelled cases (default: the checkout's).")
    ] = None,
) -> None:
    """Time the reward graders beside math-verify alone, on the same workers, and compare their verdicts.

    Three mixes: plain integers, mixed expressions, and both with 1 % of replies that stall a naive grader.
    """
    from services.cli.bench.reward import BenchOptions, bench_command

    bench_command(
        BenchOptions(
            json_path=json_path,
            num_samples=samples,
            num_rounds=rounds,
            num_workers=workers or max(1, len(os.sched_getaffinity(0)) - 1),
            limit_seconds=limit_seconds,
            seed=seed,
            cases_folder=cases or Path(__file__).resolve().parents[3] / "tests" / "unit" / "reward" / "cases",
        )
    )


@bench_app.command(
    epilog="Examples:\n\n./furlong bench algorithms\n\n./furlong bench algorithms --json losses.json --rounds 31\n\n"
    "./furlong bench algorithms --device cuda --rows 128 --columns 16384"
)
def algorithms(
    json_path: Annotated[
        Path | None, typer.Option("--json", metavar="F", help="Write all figures to this file, too.")
    ] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds; all parts take turns and medians count.")] = 15,
    rows: Annotated[int, typer.Option(min=1, help="Sequences of the batch.")] = 64,
    columns: Annotated[int, typer.Option(min=1, help="Tokens of each.")] = 4096,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    seed: Annotated[int, typer.Option(help="Seed of the batch.")] = 0,
) -> None:
    """Time every policy loss beside the bytes it reads, a plain masked mean over them, and a peer's loss.

    Exit code 0 when each costs at most twelve such means and agrees with its peer in value and gradient, else 1.
    """
    # A process of its own: the command itself loads no torch.
    command = [sys.executable, "-m", "services.trainer.bench.main", "--device", device]
    for name, number in (("rounds", rounds), ("rows", rows), ("columns", columns), ("seed", seed)):
        command += [f"--{name}", str(number)]
    if json_path is not None:
        command += ["--json", str(json_path)]
    raise typer.Exit(subprocess.run(command, check=False).returncode)


@bench_app.callback(invoke_without_command=True)
def _without_command(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
