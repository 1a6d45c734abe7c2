"""Waiting for work ends when a service dies."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from services.cli.placement.fake_placement import FakePlacement
from services.cli.placement.placement import ProcessSpec, ServiceDiedError
from services.cli.smoke.supervision import Supervisor
from services.common.errors import NotFoundError, UnavailableError


def placement_with(tmp_path: Path, *names: str) -> FakePlacement:
    placement = FakePlacement()
    for name in names:
        placement.start(
            ProcessSpec(
                name=name,
                command=("x",),
                environment={},
                log_path=tmp_path / f"{name}.log",
                working_directory=tmp_path,
            )
        )
    return placement


def test_the_result_of_the_work_comes_back(tmp_path: Path) -> None:
    assert Supervisor(placement_with(tmp_path, "reward")).run(lambda: 42) == 42


def test_the_error_of_the_work_comes_back(tmp_path: Path) -> None:
    def fail() -> None:
        raise NotFoundError("no such thing")

    with pytest.raises(NotFoundError, match="no such thing"):
        Supervisor(placement_with(tmp_path, "reward")).run(fail)


def test_a_death_during_long_work_is_noticed_within_a_second_and_named(tmp_path: Path) -> None:
    placement = placement_with(tmp_path, "reward", "rollout-0")
    log = tmp_path / "rollout-0.log"
    log.write_text("".join(f"line {number}\n" for number in range(50)))
    placement.kill("rollout-0", exit_code=-9)
    began = time.monotonic()
    with pytest.raises(ServiceDiedError) as caught:
        Supervisor(placement).run(lambda: time.sleep(3))
    assert time.monotonic() - began < 1.0
    assert str(caught.value) == (
        "service rollout-0 ended after 1 s with signal 9 (out of memory?); wanted it to run until the end; "
        f"its log is {log}"
    )
    assert caught.value.log_lines == tuple(f"line {number}" for number in range(20, 50))


def test_a_broken_connection_is_told_as_the_death_behind_it(tmp_path: Path) -> None:
    placement = placement_with(tmp_path, "trainer-0")

    def fail() -> None:
        placement.kill("trainer-0", exit_code=3)
        raise UnavailableError("connection reset")

    with pytest.raises(ServiceDiedError, match="service trainer-0 ended after 1 s with exit code 3;"):
        Supervisor(placement).run(fail)


def test_of_two_dead_services_the_one_with_an_error_is_named(tmp_path: Path) -> None:
    placement = placement_with(tmp_path, "reward", "weights")
    placement.kill("reward", exit_code=0)
    placement.kill("weights", exit_code=1)
    with pytest.raises(ServiceDiedError, match="service weights"):
        Supervisor(placement).check()


def test_items_come_as_they_are_made_and_the_look_around_happens_between(tmp_path: Path) -> None:
    looks = []

    def items() -> Iterator[int]:
        for number in range(3):
            time.sleep(0.3)
            yield number

    supervisor = Supervisor(placement_with(tmp_path, "reward"))
    stream = supervisor.stream(items(), every_seconds=0.2, do=lambda: looks.append(1))
    assert list(stream) == [0, 1, 2]
    assert len(looks) >= 3
