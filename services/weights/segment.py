"""Shared-memory segments under /dev/shm: created once and reused, seen by name, removed with their owner.

An owner holds a lock on its file for as long as it lives, so a segment without a lock belongs to a dead process and may
be removed. Files are mapped directly: `multiprocessing.shared_memory` would register them with a resource tracker that
deletes them when any reader ends.
"""

import atexit
import fcntl
import mmap
import os
import re
import secrets
from pathlib import Path

from services.common.errors import InvalidInputError, NotFoundError, OverloadedError

SHM_DIRECTORY = Path("/dev/shm")
_PREFIX = "furlong-"
_NAME = re.compile(r"furlong-[A-Za-z0-9._-]{1,200}")
# First touch of a page is 20 to 40 times slower than a copy, so pages are made when the segment is.
_MAP_FLAGS = mmap.MAP_SHARED | mmap.MAP_POPULATE


class Segment:
    """A mapped segment. Its memory stays valid for as long as a view of it lives, also after close."""

    def __init__(self, *, name: str, descriptor: int, is_owner: bool, is_writable: bool) -> None:
        """Use `create_segment` or `open_segment`."""
        self.name = name
        self._descriptor = descriptor
        self._is_owner = is_owner
        protection = mmap.PROT_READ | mmap.PROT_WRITE if is_writable else mmap.PROT_READ
        self._map = mmap.mmap(descriptor, 0, flags=_MAP_FLAGS, prot=protection)
        if is_owner:
            atexit.register(self.close)

    @property
    def view(self) -> memoryview:
        """All bytes; writable for the owner and who opened it so."""
        return memoryview(self._map)

    @property
    def size_bytes(self) -> int:
        """Size of the mapping."""
        return len(self._map)

    @property
    def is_named(self) -> bool:
        """Whether the owner still keeps it under its name."""
        return (SHM_DIRECTORY / self.name).exists()

    def close(self) -> None:
        """Lets go; an owner also removes the name. Closing twice is the same as once."""
        if self._descriptor < 0:
            return
        if self._is_owner:
            (SHM_DIRECTORY / self.name).unlink(missing_ok=True)
            atexit.unregister(self.close)
        os.close(self._descriptor)
        self._descriptor = -1


def create_segment(*, run_id: str, label: str, size_bytes: int) -> Segment:
    """A new segment of this process, its pages in memory, readable by this user only.

    Args:
        label: tells what it is for, such as "trainer-0"; a random suffix makes the name unique.

    Raises:
        OverloadedError: /dev/shm has too little room.
        InvalidInputError: run id or label cannot be part of a file name.
    """
    name = _check_name(f"{_PREFIX}{run_id}-{label}-{secrets.token_hex(4)}")
    path = SHM_DIRECTORY / name
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        os.posix_fallocate(descriptor, 0, max(1, size_bytes))
        return Segment(name=name, descriptor=descriptor, is_owner=True, is_writable=True)
    except OSError as error:
        os.close(descriptor)
        path.unlink(missing_ok=True)
        status = os.statvfs(SHM_DIRECTORY)
        raise OverloadedError(
            f"{SHM_DIRECTORY} has {status.f_bavail * status.f_frsize >> 20} MiB free, segment {name} needs "
            f"{size_bytes >> 20} MiB ({error.strerror}); free memory, enlarge it, or set weights.transport=tcp"
        ) from error


def open_segment(name: str, *, is_writable: bool = False) -> Segment:
    """Another process's segment.

    Args:
        is_writable: map it writable, which torch.frombuffer wants even of a tensor that is only read.

    Raises:
        InvalidInputError: the name is none of a segment.
        NotFoundError: there is no such segment; its owner has ended.
    """
    _check_name(name)
    try:
        descriptor = os.open(SHM_DIRECTORY / name, (os.O_RDWR if is_writable else os.O_RDONLY) | os.O_NOFOLLOW)
    except OSError as error:
        raise NotFoundError(
            f"segment {name} cannot be opened ({error.strerror}); its owner has ended or runs on another host"
        ) from error
    try:
        return Segment(name=name, descriptor=descriptor, is_owner=False, is_writable=is_writable)
    except (OSError, ValueError) as error:
        os.close(descriptor)
        raise NotFoundError(f"segment {name} cannot be mapped ({error}); its owner has ended") from error


def remove_stale_segments(run_id: str = "") -> list[str]:
    """Removes the segments whose owner is dead and returns their names.

    Args:
        run_id: only segments of this run; empty: of all runs.
    """
    removed: list[str] = []
    for path in SHM_DIRECTORY.glob(f"{_PREFIX}{run_id}-*" if run_id else f"{_PREFIX}*"):
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW)
        except OSError:
            continue
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # An empty file may be a segment in the moment between its creation and its lock.
            if os.fstat(descriptor).st_size:
                path.unlink(missing_ok=True)
                removed.append(path.name)
        except BlockingIOError:
            continue
        finally:
            os.close(descriptor)
    return sorted(removed)


def _check_name(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise InvalidInputError(f"segment name {name!r} is unusable; use letters, digits, '.', '_' and '-' only")
    return name
