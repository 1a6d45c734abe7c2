"""The records of a run: moved aside, resumed, used by one process at a time."""

import subprocess
import sys
from pathlib import Path

import pytest

from services.cli.run_folder import RunFolder
from services.common.errors import ConfigError, InvalidInputError, StateConflictError
from tests.unit.cli.sample_records import make_report


def test_a_new_run_moves_the_earlier_records_aside(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "runs", "smoke")
    assert folder.open_new() is None
    (folder.path / "first").touch()
    assert folder.open_new() == tmp_path / "runs" / "smoke.1"
    (folder.path / "second").touch()
    assert folder.open_new() == tmp_path / "runs" / "smoke.2"
    assert list(folder.path.iterdir()) == []
    assert (tmp_path / "runs" / "smoke.1" / "first").exists()
    assert (tmp_path / "runs" / "smoke.2" / "second").exists()


def test_steps_are_read_back_as_written(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path, "smoke")
    folder.open_new()
    reports = [
        make_report(0),
        make_report(1, held_out_accuracy=0.5, num_groups_dropped={"equal_rewards": 3}),
    ]
    for report in reports:
        folder.append_step(report)
    assert folder.read_steps() == reports


def test_a_last_line_that_a_crash_cut_off_is_left_out(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path, "smoke")
    folder.open_new()
    folder.append_step(make_report(0))
    whole = folder.steps_path.read_text()
    folder.steps_path.write_text(whole + whole[:40])
    assert [report.step for report in folder.read_steps()] == [0]


def test_a_bad_line_is_named(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path, "smoke")
    folder.open_new()
    folder.append_step(make_report(0))
    with folder.steps_path.open("a") as file:
        file.write("nonsense\n")
    with pytest.raises(InvalidInputError, match=r"steps.jsonl:2: is no step report .*; remove the line or"):
        folder.read_steps()


def test_steps_behind_the_checkpoint_stay_and_later_ones_go(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path, "smoke")
    folder.open_new()
    for step in range(8):
        folder.append_step(make_report(step))
    assert [report.step for report in folder.keep_steps_below(5)] == [0, 1, 2, 3, 4]
    assert [report.step for report in folder.read_steps()] == [0, 1, 2, 3, 4]


def test_resuming_without_a_run_is_one_line(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path, "smoke")
    with pytest.raises(ConfigError) as caught:
        folder.require_resumable()
    assert str(caught.value) == (
        f"--resume: {tmp_path}/smoke holds no run; leave --resume out to start one, or give the --name of a run"
    )


def test_a_run_in_use_is_refused_with_the_process_that_has_it(tmp_path: Path) -> None:
    code = (
        "import pathlib, sys; from services.cli.run_folder import RunFolder;"
        "folder = RunFolder(pathlib.Path(sys.argv[1]), 'smoke'); folder.lock();"
        "print('locked', flush=True); sys.stdin.read()"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert holder.stdout
        assert holder.stdout.readline() == "locked\n"
        with pytest.raises(StateConflictError) as caught:
            RunFolder(tmp_path, "smoke").lock()
        assert str(caught.value) == (
            f"run 'smoke' is in use by process {holder.pid}; wait until it ends or give another --name"
        )
    finally:
        holder.communicate("")
    folder = RunFolder(tmp_path, "smoke")
    folder.lock()
    folder.unlock()
