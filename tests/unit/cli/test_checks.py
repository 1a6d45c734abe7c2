"""`furlong test`: which checks run, and how failures are told."""

import os
import sys
from pathlib import Path

import pytest

from services.cli.checks import CheckCommand, plan_checks, run_check
from services.common.errors import InvalidInputError


def names(*parts: str) -> list[str]:
    checks = plan_checks(parts, root=Path("/r"), tools=Path("/t"), python="py")
    return [check.name for check in checks]


def test_all_is_every_part_once_and_quick_ones_first() -> None:
    assert names("all", "unit") == [
        "ruff check",
        "ruff format",
        "mypy --strict",
        "import-linter",
        "buf lint",
        "generated code",
        "pytest unit",
        "pytest contract",
        "pytest integration",
    ]


def test_parts_run_in_a_fixed_order() -> None:
    assert names("contract", "unit") == ["pytest unit", "pytest contract"]


def test_an_unknown_part_is_one_line() -> None:
    with pytest.raises(InvalidInputError) as caught:
        names("units")
    assert str(caught.value) == (
        "test part 'units' is unknown; wanted some of lint, unit, contract, integration, or all"
    )


def check_of(*command: str) -> CheckCommand:
    return CheckCommand(name="it", command=command, folder=Path("/"), is_streamed=False)


def test_output_is_shown_only_when_the_check_fails(capsys: pytest.CaptureFixture[str]) -> None:
    passed = run_check(check_of(sys.executable, "-c", "print('fine')"), environment=os.environ)
    assert (passed.exit_code, capsys.readouterr().out) == (0, "")
    failed = run_check(check_of(sys.executable, "-c", "print('bad'); exit(3)"), environment=os.environ)
    assert (failed.exit_code, capsys.readouterr().out) == (3, "bad\n\n")


def test_a_missing_program_is_a_failure_with_the_remedy(capsys: pytest.CaptureFixture[str]) -> None:
    result = run_check(check_of("/nowhere/ruff"), environment=os.environ)
    assert result.exit_code == 127
    assert capsys.readouterr().out == (
        "/nowhere/ruff: No such file or directory; run ./furlong test, which installs requirements/dev.txt\n"
    )
