"""The commands below `furlong reward`."""

import os
from pathlib import Path
from typing import Annotated

import typer

reward_app = typer.Typer(name="reward", help="Grade replies without a run.")


@reward_app.command(
    epilog="Examples:\n\n"
    "./furlong reward score replies.jsonl --grader math\n\n"
    "./furlong reward score replies.jsonl --grader boxed --json scores.jsonl\n\n"
    "./furlong reward score replies.jsonl --grader dapo --explain 17"
)
def score(
    path: Annotated[Path, typer.Argument(metavar="FILE.jsonl", help='Lines of {"prompt", "reply", "label"}.')],
    grader: Annotated[str, typer.Option(help='Grader; a line\'s own "grader" goes first.')] = "boxed",
    json_path: Annotated[
        Path | None, typer.Option("--json", metavar="OUT", help="Write one score a line to this file, in order.")
    ] = None,
    explain: Annotated[
        int | None, typer.Option(metavar="N", help="Score line N only and say why it has its score.")
    ] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Worker processes (default: one per core).")] = None,
    limit_seconds: Annotated[float, typer.Option(min=0.01, help="Most time for one sample.")] = 1.0,
    memory_limit_mb: Annotated[int, typer.Option(min=16, help="Most memory of a worker.")] = 1024,
) -> None:
    """Score a file of replies and print accuracy, reasons and timeouts.

    A line that cannot be graded (bad label, timeout, exception) gets the grader's lowest score and an error; OUT has
    one line per input line. Lines that are no {reply, label} object are named at the end with exit code 2.
    """
    from services.cli.reward.scoring import ScoreOptions, score_command

    score_command(
        ScoreOptions(
            path=path,
            grader=grader,
            json_path=json_path,
            explain_line=explain,
            num_workers=workers or len(os.sched_getaffinity(0)),
            limit_seconds=limit_seconds,
            memory_limit_mb=memory_limit_mb,
        )
    )


@reward_app.command(
    epilog="Examples:\n\n./furlong reward audit problems.jsonl\n\n"
    "./furlong reward audit problems.jsonl --grader math --json audit.json"
)
def audit(
    path: Annotated[Path, typer.Argument(metavar="FILE.jsonl", help='Lines with a "label".')],
    grader: Annotated[str, typer.Option(help="Grader that takes a boxed answer and scores 0 or 1.")] = "boxed",
    json_path: Annotated[Path | None, typer.Option("--json", metavar="OUT", help="Write counts and findings.")] = None,
    limit_seconds: Annotated[float, typer.Option(min=0.01, help="Most time for one answer.")] = 1.0,
    memory_limit_mb: Annotated[int, typer.Option(min=16, help="Most memory of the worker.")] = 1024,
) -> None:
    """Check a grader against the labels of a file before a run trains on them.

    Every label must score 1 against itself and mechanical rewritings of itself, and 0 against the next line's label.
    Exit code 1 when one does not.
    """
    from services.cli.reward.auditing import audit_command
    from services.cli.reward.scoring import ScoreOptions

    exit_code = audit_command(
        ScoreOptions(
            path=path,
            grader=grader,
            json_path=json_path,
            explain_line=None,
            num_workers=1,
            limit_seconds=limit_seconds,
            memory_limit_mb=memory_limit_mb,
        )
    )
    raise typer.Exit(exit_code)


@reward_app.callback(invoke_without_command=True)
def _without_command(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
