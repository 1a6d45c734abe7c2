"""What a machine lacks is one line: the value seen, the value wanted, the remedy."""

from pathlib import Path

import pytest

from services.cli.machine import (
    GIB,
    MIB,
    PINNED_PACKAGES,
    MachineFacts,
    check_machine,
    look_at_machine,
    needed_memory_bytes,
)
from services.cli.smoke.preflight import require_machine
from services.common.config.loading import recipe_from_table
from services.common.config.recipe import Recipe
from services.common.errors import ConfigError

ROOT = Path(__file__).parents[3]


def facts(
    *,
    python_version: tuple[int, int] = (3, 11),
    packages: dict[str, str | None] | None = None,
    memory: int = 20 * GIB,
    disk: int = 50 * GIB,
    shared: int | None = 1 * GIB,
) -> MachineFacts:
    return MachineFacts(
        python_version=python_version,
        package_versions={**PINNED_PACKAGES, **(packages or {})},
        available_memory_bytes=memory,
        free_disk_bytes=disk,
        free_shared_memory_bytes=shared,
    )


def test_a_good_machine_meets_every_need() -> None:
    assert [check.name for check in check_machine(facts()) if not check.is_met] == []


@pytest.mark.parametrize(
    ("seen", "message"),
    [
        (
            facts(python_version=(3, 13)),
            "Python is 3.13; wanted 3.11 or 3.12; "
            "remove .venv and run ./furlong with FURLONG_PYTHON set to such an interpreter",
        ),
        (
            facts(packages={"torch": "2.11.0+cu130"}),
            "package torch is 2.11.0+cu130; wanted 2.13.0; "
            "remove .venv and run ./furlong again: it installs the locked packages",
        ),
        (
            facts(packages={"sglang": None}),
            "package sglang is not installed; wanted 0.5.20; "
            "remove .venv and run ./furlong again: it installs the locked packages",
        ),
        (
            facts(memory=3 * GIB),
            "available memory is 3.0 GiB; wanted at least 6.0 GiB; "
            "end other programs, or use a machine or a container with more memory",
        ),
        (
            facts(disk=GIB),
            "free disk space is 1.0 GiB; wanted at least 2.0 GiB; "
            "free some, or set run.directory to a folder on another disk",
        ),
        (
            facts(shared=16 * MIB),
            "free shared memory in /dev/shm is 16 MiB; wanted at least 48 MiB; "
            "remove old files in /dev/shm, or start the container with --shm-size=1g",
        ),
        (
            facts(shared=None),
            "free shared memory in /dev/shm is absent; wanted at least 48 MiB; "
            "remove old files in /dev/shm, or start the container with --shm-size=1g",
        ),
    ],
)
def test_an_unmet_need_is_one_line(seen: MachineFacts, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        require_machine(seen, Recipe())
    assert str(caught.value) == message


def test_a_build_of_the_wanted_version_is_the_wanted_version() -> None:
    require_machine(facts(packages={"torch": "2.13.0+cpu"}), Recipe())


def test_further_engines_and_ranks_need_more_memory() -> None:
    # 6 GiB and 2 GiB for the second engine and 2 x 1.5 GiB for the second and third rank.
    assert needed_memory_bytes(engines=2, trainer_ranks=3) == 11 * GIB
    recipe = recipe_from_table({"rollout": {"replicas": 2}, "trainer": {"ranks": 3}})
    with pytest.raises(ConfigError, match=r"available memory is 10\.0 GiB; wanted at least 11\.0 GiB"):
        require_machine(facts(memory=10 * GIB), recipe)


def test_a_containers_limit_bounds_the_memory(tmp_path: Path) -> None:
    values = {"memory.max": f"{3 * GIB}\n", "memory.current": f"{GIB}\n"}
    seen = look_at_machine(tmp_path / "not" / "yet", read_text=lambda path: values[path.name])
    assert seen.available_memory_bytes == 2 * GIB


def test_pinned_versions_are_those_of_the_lock() -> None:
    lock = (ROOT / "requirements" / "runtime.txt").read_text().splitlines()
    for name, version in PINNED_PACKAGES.items():
        assert f"{name}=={version}" in lock
