"""What the watchdog does with the lines it is told."""

import os
import subprocess
import sys
import uuid
from pathlib import Path

from services.cli.placement.process_tree import MARK_VARIABLE, belonging_processes, end_processes
from services.cli.placement.watchdog import remove_shared_memory, watch


def test_done_means_nothing_is_killed(tmp_path: Path) -> None:
    sleeper = subprocess.Popen(["sleep", "300"], start_new_session=True)
    try:
        assert watch([f"leader {sleeper.pid}\n", "done\n"], mark="none", shared_memory=tmp_path) == 0
        assert sleeper.poll() is None
    finally:
        sleeper.kill()
        sleeper.wait()


def test_an_input_that_ends_without_done_kills_the_leaders(tmp_path: Path) -> None:
    (tmp_path / "furlong-a-1").write_bytes(b"x")
    (tmp_path / "furlong-b-1").write_bytes(b"x")
    sleeper = subprocess.Popen(["sleep", "300"], start_new_session=True)
    lines = ["shared furlong-a-\n", f"leader {sleeper.pid}\n"]
    assert watch(lines, mark="none", shared_memory=tmp_path) == 1
    assert sleeper.wait(timeout=5) == -9
    assert [path.name for path in tmp_path.iterdir()] == ["furlong-b-1"]


def test_the_mark_finds_a_process_outside_any_known_session() -> None:
    environment = {**os.environ, MARK_VARIABLE: "abc/engine"}
    sleeper = subprocess.Popen(["sleep", "300"], env=environment, start_new_session=True)
    try:
        assert [p.pid for p in belonging_processes(leaders=[], mark="abc")] == [sleeper.pid]
        assert [p.pid for p in belonging_processes(leaders=[], mark="abc/engine")] == [sleeper.pid]
        assert belonging_processes(leaders=[], mark="ab") == []
        assert belonging_processes(leaders=[], mark="abc/eng") == []
    finally:
        sleeper.kill()
        sleeper.wait()


def test_removing_from_a_folder_that_does_not_exist_removes_nothing(tmp_path: Path) -> None:
    assert remove_shared_memory("furlong-", folder=tmp_path / "absent") == 0


MAPPING = """
import mmap, os, sys, time
maps = []
for path in sys.argv[1:]:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT)
    os.ftruncate(descriptor, 4096)
    maps.append(mmap.mmap(descriptor, 4096))
print("mapped", flush=True)
time.sleep(300)
"""


def test_shared_memory_of_a_killed_engine_goes_and_a_strangers_stays() -> None:
    token = uuid.uuid4().hex
    engine, stranger = Path(f"/dev/shm/sglang_loads_{token}"), Path(f"/dev/shm/other_{token}")
    process = subprocess.Popen(
        [sys.executable, "-c", MAPPING, str(engine), str(stranger)],
        start_new_session=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout
        assert process.stdout.readline() == "mapped\n"
        assert end_processes(leaders=[process.pid], mark="none") == 1
        assert not engine.exists()
        assert stranger.exists()
    finally:
        stranger.unlink()
        process.communicate()
