"""Segments: reused memory, removed with their owner, also when the owner was killed."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from services.common.errors import InvalidInputError, NotFoundError, OverloadedError
from services.weights.segment import create_segment, open_segment, remove_stale_segments

SHM = Path("/dev/shm")
_OWNER = """
import sys, time
from services.weights.segment import create_segment
segment = create_segment(run_id=sys.argv[1], label="owner", size_bytes=4096)
print(segment.name, flush=True)
if sys.argv[2] == "wait":
    time.sleep(60)
"""


def start_owner(run_id: str, then: str) -> tuple[subprocess.Popen[str], str]:
    process = subprocess.Popen([sys.executable, "-c", _OWNER, run_id, then], stdout=subprocess.PIPE, text=True)
    assert process.stdout
    with process.stdout:
        return process, process.stdout.readline().strip()


def test_reader_sees_what_the_owner_writes_until_the_owner_closes(run_id):
    owner = create_segment(run_id=run_id, label="a", size_bytes=100)
    reader = open_segment(owner.name)
    owner.view[:3] = b"abc"
    assert bytes(reader.view[:4]) == b"abc\0"
    owner.close()
    owner.close()
    assert bytes(reader.view[:3]) == b"abc"
    with pytest.raises(NotFoundError, match="its owner has ended"):
        open_segment(owner.name)
    reader.close()


def test_segment_is_private_to_the_user(run_id):
    owner = create_segment(run_id=run_id, label="a", size_bytes=1)
    assert (SHM / owner.name).stat().st_mode & 0o777 == 0o600
    owner.close()


def test_too_little_room_is_told_in_one_line_and_leaves_nothing(run_id):
    with pytest.raises(OverloadedError, match=r"/dev/shm has \d+ MiB free, segment furlong-.* needs 1048576 MiB"):
        create_segment(run_id=run_id, label="a", size_bytes=1 << 40)


@pytest.mark.parametrize("name", ["../x", "furlong-", "other-segment", "furlong-a/b"])
def test_names_that_are_no_segment_are_refused(name: str):
    with pytest.raises(InvalidInputError, match="is unusable"):
        open_segment(name)


def test_owner_that_ends_in_order_removes_its_segment(run_id):
    process, name = start_owner(run_id, "end")
    assert process.wait(timeout=20) == 0
    assert name.startswith(f"furlong-{run_id}-owner-")
    assert not (SHM / name).exists()


def test_only_segments_of_dead_owners_are_removed(run_id):
    mine = create_segment(run_id=run_id, label="mine", size_bytes=1)
    process, name = start_owner(run_id, "wait")
    assert remove_stale_segments(run_id) == []
    os.kill(process.pid, signal.SIGKILL)
    process.wait(timeout=20)
    assert (SHM / name).exists()
    assert remove_stale_segments(run_id) == [name]
    assert (SHM / mine.name).exists()
    mine.close()
