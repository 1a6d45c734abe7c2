"""The furlong command: what the user types, and the one place where an error becomes a line and an exit code."""

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from services.cli.bench.commands import bench_app
from services.cli.reward.commands import reward_app
from services.common.errors import ConfigError, FurlongError, InvalidInputError

ROOT = Path(__file__).resolve().parents[2]
"""The checkout that this command runs from."""
EXIT_FAILED = 1
EXIT_BAD_INPUT = 2
EXIT_INTERRUPTED = 130

app = typer.Typer(
    name="furlong",
    help="Reinforcement learning for GLM-4.5-class mixture-of-experts language models.",
    epilog="Start with: ./furlong smoke",
    add_completion=False,
    rich_markup_mode="rich",
)
app.add_typer(reward_app)
app.add_typer(bench_app)

RecipeOption = Annotated[
    Path | None, typer.Option("--recipe", metavar="FILE", help="Recipe (TOML); without it the defaults.")
]
SetOption = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change one key; may be repeated.")
]


@app.command(
    epilog="Examples:\n\n"
    "./furlong smoke\n\n"
    "./furlong smoke --steps 10 --json evidence.json\n\n"
    "./furlong smoke --set trainer.ranks=2 --set rollout.max_lag_versions=1\n\n"
    "./furlong smoke --set model.preset=tiny-byte --prompt-data problems.jsonl --steps 3\n\n"
    "./furlong smoke --resume --steps 60"
)
def smoke(
    recipe: RecipeOption = None,
    overrides: SetOption = None,
    steps: Annotated[int | None, typer.Option(help="Training steps (run.steps).")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of everything random (run.seed).")] = None,
    name: Annotated[str | None, typer.Option(help="Name of the run (run.name).")] = None,
    prompt_data: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Train on this .jsonl file instead of additions.")
    ] = None,
    input_key: Annotated[str | None, typer.Option(help="Key of the prompt in a line (data.input_key).")] = None,
    label_key: Annotated[str | None, typer.Option(help="Key of the answer in a line (data.label_key).")] = None,
    json_path: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write the evidence to this file, too.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the run's last checkpoint.")] = False,
) -> None:
    """Run the whole loop on this machine: a tiny model learns arithmetic, in about two minutes on two cores.

    `./furlong recipe` prints the recipe that it runs, with every default.

    Starts an embedded Valkey and the four services with the real engines, warm-starts the model, trains it by
    reinforcement learning, evaluates before and after, and stops everything. Exit code 0 only if the policy learned
    (on your own prompts: if all steps were done).
    """
    from services.cli.smoke.command import place_locally, smoke_command
    from services.cli.smoke.options import SmokeOptions

    options = SmokeOptions(
        recipe_path=recipe,
        overrides=tuple(overrides or ()),
        steps=steps,
        seed=seed,
        name=name,
        prompt_data=prompt_data,
        input_key=input_key,
        label_key=label_key,
        evidence_path=json_path,
        is_resume=resume,
    )
    exit_code = smoke_command(options, make_placement=place_locally, environment=os.environ, started=_STARTED)
    raise typer.Exit(exit_code)


@app.command("test", epilog="Examples:\n\n./furlong test\n\n./furlong test unit\n\n./furlong test lint contract")
def run_tests(
    parts: Annotated[
        list[str] | None, typer.Argument(metavar="[lint|unit|contract|integration|all]...", help="What to run.")
    ] = None,
) -> None:
    """Run the checks and tests and print a table with their times; all of them without an argument."""
    from services.cli.checks import run_checks

    raise typer.Exit(run_checks(parts or ["all"], root=ROOT, environment=os.environ))


@app.command(
    "recipe", epilog="Examples:\n\n./furlong recipe > my.toml\n\n./furlong recipe --recipe my.toml --set run.seed=1"
)
def print_recipe(recipe: RecipeOption = None, overrides: SetOption = None) -> None:
    """Print a recipe with every key, its value and what it means, as TOML that --recipe reads."""
    from services.cli.recipe_listing import recipe_toml
    from services.common.config.loading import load_recipe

    typer.echo(recipe_toml(load_recipe(recipe, overrides or ())), nl=False)


@app.command()
def doctor(recipe: RecipeOption = None, overrides: SetOption = None) -> None:
    """Check whether this machine can run a recipe: Python, packages, memory, disk, shared memory, ports."""
    from services.cli.doctor import examine
    from services.common.config.loading import load_recipe

    raise typer.Exit(examine(load_recipe(recipe, overrides or ())))


@app.command()
def version() -> None:
    """Print the version."""
    from importlib.metadata import version as installed_version

    typer.echo(installed_version("furlong"))


@app.callback(invoke_without_command=True)
def _without_command(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def main() -> None:
    """Runs the command that was typed."""
    # Not standalone: typer would draw boxes of several lines where one says it.
    exit_with(lambda: app(standalone_mode=False))


def exit_with(command: Callable[[], int | None]) -> NoReturn:
    """Runs the command and ends the process; every expected error is one line on standard error and an exit code.

    2: the recipe, the machine or an input cannot work. 1: the run or a check failed. 130: Ctrl-C. A service that died
    is preceded by the last lines of its log.
    """
    from services.cli.placement.placement import ServiceDiedError

    try:
        exit_code = command() or 0
    except typer.exceptions.TyperException as error:
        _fail(f"{error.format_message().rstrip('.')}; see furlong --help", EXIT_BAD_INPUT)
    except (ConfigError, InvalidInputError) as error:
        _fail(str(error), EXIT_BAD_INPUT)
    except ServiceDiedError as error:
        for line in error.log_lines:
            print(f"  {line}", file=sys.stderr)
        _fail(str(error), EXIT_FAILED)
    except FurlongError as error:
        _fail(str(error), EXIT_FAILED)
    except KeyboardInterrupt:
        exit_code = EXIT_INTERRUPTED
    if exit_code == EXIT_INTERRUPTED:
        print("furlong: interrupted; everything was stopped", file=sys.stderr)
    sys.exit(exit_code)


def _fail(message: str, exit_code: int) -> NoReturn:
    print(f"furlong: error: {message}", file=sys.stderr)
    sys.exit(exit_code)


_STARTED = time.monotonic()

if __name__ == "__main__":
    main()
