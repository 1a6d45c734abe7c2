"""Processes on this machine: logs, deaths, and nothing left behind, children of children included."""

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from services.cli.placement.local_processes import LocalProcesses
from services.cli.placement.placement import ProcessSpec
from services.common.errors import ConfigError

# A leader that ignores SIGTERM, with a child in its own session and a grandchild in another one: what an engine's
# schedulers look like at their worst. The process ids go to the file named by the first argument.
STUBBORN_FAMILY = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen(
    [sys.executable, "-c",
     "import subprocess, sys, time; p = subprocess.Popen(['sleep', '300'], start_new_session=True);"
     "print(p.pid, flush=True); time.sleep(300)"],
    start_new_session=True, stdout=subprocess.PIPE, text=True)
grandchild = int(child.stdout.readline())
partial = sys.argv[1] + ".partial"
with open(partial, "w") as file:
    file.write(f"{os.getpid()} {child.pid} {grandchild}")
os.replace(partial, sys.argv[1])
time.sleep(300)
"""


def spec(tmp_path: Path, name: str, *command: str) -> ProcessSpec:
    return ProcessSpec(
        name=name,
        command=command,
        environment=dict(os.environ),
        log_path=tmp_path / "logs" / f"{name}.log",
        working_directory=tmp_path,
    )


@pytest.fixture
def placement() -> Iterator[LocalProcesses]:
    made = LocalProcesses(shared_memory_prefix=f"furlong-test-{uuid.uuid4().hex}")
    yield made
    made.close()


def wait_for(condition, seconds: float = 10.0) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.02)
    return False


def is_running(process_id: int) -> bool:
    with suppress(psutil.NoSuchProcess):
        return psutil.Process(process_id).status() != psutil.STATUS_ZOMBIE
    return False


def family_of(path: Path) -> list[int]:
    assert wait_for(path.exists)
    return [int(word) for word in path.read_text().split()]


def test_output_of_a_process_goes_to_its_log(tmp_path: Path, placement: LocalProcesses) -> None:
    placement.start(spec(tmp_path, "talker", "sh", "-c", "echo one; echo two >&2; echo three"))
    assert wait_for(lambda: placement.statuses()[0].exit_code is not None)
    assert (tmp_path / "logs" / "talker.log").read_text() == "one\ntwo\nthree\n"
    assert placement.last_log_lines("talker", num_lines=2) == ["two", "three"]


def test_a_death_shows_within_a_second(tmp_path: Path, placement: LocalProcesses) -> None:
    placement.start(spec(tmp_path, "steady", "sleep", "300"))
    placement.start(spec(tmp_path, "dying", "sh", "-c", "sleep 0.2; exit 7"))
    assert wait_for(lambda: placement.statuses()[1].exit_code is not None, seconds=5.0)
    steady, dying = placement.statuses()
    assert (steady.name, steady.exit_code) == ("steady", None)
    assert (dying.name, dying.exit_code) == ("dying", 7)
    assert 0.2 <= dying.seconds < 5.0


def test_stop_ends_a_process_that_heeds_sigterm_at_once(tmp_path: Path, placement: LocalProcesses) -> None:
    placement.start(spec(tmp_path, "sleeper", "sleep", "300"))
    began = time.monotonic()
    placement.stop(["sleeper"], grace_seconds=5.0)
    assert time.monotonic() - began < 4.5
    assert placement.statuses() == []


def test_stop_kills_children_and_grandchildren_in_other_sessions(tmp_path: Path, placement: LocalProcesses) -> None:
    pids_path = tmp_path / "pids"
    placement.start(spec(tmp_path, "family", sys.executable, "-c", STUBBORN_FAMILY, str(pids_path)))
    family = family_of(pids_path)
    assert all(is_running(process_id) for process_id in family)
    placement.stop(["family"], grace_seconds=0.3)
    assert [process_id for process_id in family if is_running(process_id)] == []


def test_children_of_a_leader_that_crashed_are_ended_as_well(tmp_path: Path, placement: LocalProcesses) -> None:
    pids_path = tmp_path / "pids"
    placement.start(spec(tmp_path, "family", sys.executable, "-c", STUBBORN_FAMILY, str(pids_path)))
    leader, *others = family_of(pids_path)
    os.kill(leader, signal.SIGKILL)
    assert wait_for(lambda: placement.statuses()[0].exit_code == -9)
    placement.stop(["family"], grace_seconds=1.0)
    assert [process_id for process_id in others if is_running(process_id)] == []


def test_stopping_one_process_leaves_the_others(tmp_path: Path, placement: LocalProcesses) -> None:
    placement.start(spec(tmp_path, "one", "sleep", "300"))
    placement.start(spec(tmp_path, "two", "sleep", "300"))
    placement.stop(["one"], grace_seconds=2.0)
    assert [(status.name, status.exit_code) for status in placement.statuses()] == [("two", None)]


def test_close_removes_shared_memory_of_the_run_only(tmp_path: Path) -> None:
    token = uuid.uuid4().hex
    ours, other = (Path("/dev/shm") / f"furlong-test-{token}-{end}" for end in ("a-1", "b-1"))
    ours.write_bytes(b"x")
    other.write_bytes(b"x")
    try:
        LocalProcesses(shared_memory_prefix=f"furlong-test-{token}-a").close()
        assert not ours.exists()
        assert other.exists()
    finally:
        other.unlink()


def test_a_program_that_does_not_exist_is_one_clear_line(tmp_path: Path, placement: LocalProcesses) -> None:
    with pytest.raises(ConfigError) as caught:
        placement.start(spec(tmp_path, "ghost", "/nowhere/ghost"))
    assert str(caught.value) == (
        "ghost: /nowhere/ghost cannot be started (No such file or directory); install the packages again"
    )


OWNER = """
import os, pathlib, sys, time
from services.cli.placement.local_processes import LocalProcesses
from services.cli.placement.placement import ProcessSpec
folder = pathlib.Path(sys.argv[1])
placement = LocalProcesses(shared_memory_prefix=sys.argv[2])
placement.start(ProcessSpec(
    name="family", command=(sys.executable, "-c", sys.argv[3], str(folder / "pids")), environment=dict(os.environ),
    log_path=folder / "family.log", working_directory=folder))
time.sleep(300)
"""


def test_killing_the_owner_leaves_nothing_behind(tmp_path: Path) -> None:
    prefix = f"furlong-test-{uuid.uuid4().hex}"
    segment = Path("/dev/shm") / f"{prefix}-trainer-0"
    segment.write_bytes(b"x")
    owner = subprocess.Popen([sys.executable, "-c", OWNER, str(tmp_path), prefix, STUBBORN_FAMILY])
    family = family_of(tmp_path / "pids")
    watchdogs = [child.pid for child in psutil.Process(owner.pid).children() if child.pid not in family]
    assert len(watchdogs) == 1
    owner.kill()
    owner.wait()
    assert wait_for(lambda: not any(is_running(process_id) for process_id in family))
    assert wait_for(lambda: not is_running(watchdogs[0]))
    assert not segment.exists()
