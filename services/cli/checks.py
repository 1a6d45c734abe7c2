"""`furlong test`: every check and test suite of the repository, with a table of results and times."""

import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from services.common.errors import InvalidInputError

SUITES = ("unit", "contract", "integration")
"""Folders below tests/, in the order they run."""
PARTS = ("lint", *SUITES)
"""What can be asked for; "all" is all of them."""


@dataclass(frozen=True, kw_only=True)
class CheckCommand:
    """One check."""

    name: str
    """As shown in the table."""
    command: tuple[str, ...]
    """Program and arguments."""
    folder: Path
    """Where it runs."""
    is_streamed: bool
    """Its output is shown while it runs; otherwise only when it fails."""


@dataclass(frozen=True, kw_only=True)
class CheckResult:
    """How a check ended."""

    name: str
    """Its name."""
    exit_code: int
    """0 when it passed."""
    seconds: float
    """How long it took."""


Runner = Callable[[CheckCommand], CheckResult]


def plan_checks(parts: Sequence[str], *, root: Path, tools: Path, python: str) -> list[CheckCommand]:
    """The checks of the parts, each once, quick ones first.

    Args:
        tools: folder with the programs of ruff, mypy, import-linter and buf.

    Raises:
        InvalidInputError: a part is unknown.
    """
    for part in parts:
        if part not in (*PARTS, "all"):
            raise InvalidInputError(f"test part {part!r} is unknown; wanted some of {', '.join(PARTS)}, or all")
    wanted = PARTS if "all" in parts else tuple(part for part in PARTS if part in parts)
    checks: list[CheckCommand] = []
    for part in wanted:
        if part == "lint":
            checks.extend(_lint_checks(root, tools))
        else:
            command = (python, "-m", "pytest", "-q", f"tests/{part}")
            checks.append(CheckCommand(name=f"pytest {part}", command=command, folder=root, is_streamed=True))
    return checks


def run_checks(parts: Sequence[str], *, root: Path, environment: Mapping[str, str]) -> int:
    """Runs all checks of the parts, whatever fails on the way; 0 when all passed, else 1.

    Raises:
        InvalidInputError: a part is unknown.
    """
    checks = plan_checks(parts, root=root, tools=Path(sys.prefix) / "bin", python=sys.executable)
    console = Console()
    results = []
    for check in checks:
        console.print(f"furlong test: {check.name}", style="bold", highlight=False)
        results.append(run_check(check, environment=environment))
    console.print(_table(results))
    failed = [result.name for result in results if result.exit_code]
    if failed:
        console.print(f"{len(failed)} of {len(results)} failed: {', '.join(failed)}", style="red")
    return 1 if failed else 0


def run_check(check: CheckCommand, *, environment: Mapping[str, str]) -> CheckResult:
    """The result of one check; a missing program counts as a failure that says so."""
    began = time.monotonic()
    try:
        done = subprocess.run(
            check.command,
            cwd=check.folder,
            env=environment,
            stdout=None if check.is_streamed else subprocess.PIPE,
            stderr=None if check.is_streamed else subprocess.STDOUT,
            text=True,
            check=False,
        )
        exit_code, output = done.returncode, done.stdout or ""
    except OSError as error:
        exit_code = 127
        output = f"{check.command[0]}: {error.strerror}; run ./furlong test, which installs requirements/dev.txt"
    if exit_code and output:
        print(output)
    return CheckResult(name=check.name, exit_code=exit_code, seconds=time.monotonic() - began)


def _lint_checks(root: Path, tools: Path) -> list[CheckCommand]:
    commands = {
        "ruff check": (str(tools / "ruff"), "check", "."),
        "ruff format": (str(tools / "ruff"), "format", "--check", "."),
        "mypy --strict": (str(tools / "mypy"),),
        "import-linter": (str(tools / "lint-imports"),),
    }
    checks = [
        CheckCommand(name=name, command=command, folder=root, is_streamed=False) for name, command in commands.items()
    ]
    buf = (str(tools / "buf"), "lint")
    checks.append(CheckCommand(name="buf lint", command=buf, folder=root / "proto", is_streamed=False))
    generated = (str(root / "proto" / "generate.sh"), "--check")
    checks.append(CheckCommand(name="generated code", command=generated, folder=root, is_streamed=False))
    return checks


def _table(results: Sequence[CheckResult]) -> Table:
    table = Table()
    table.add_column("check")
    table.add_column("result")
    table.add_column("seconds", justify="right")
    for result in results:
        text = "[green]passed[/green]" if result.exit_code == 0 else f"[red]failed ({result.exit_code})[/red]"
        table.add_row(result.name, text, f"{result.seconds:.1f}")
    table.add_row("all", "", f"{sum(result.seconds for result in results):.1f}")
    return table
