"""An engine joins again after a quarantine and after a restart of the weights service."""

import threading
from collections.abc import Callable, Sequence

import pytest

from services.common.errors import UnavailableError
from services.common.records import PolicyVersion
from services.rollout.membership import Membership
from services.weights.published import EngineRecord
from services.weights.transfer import EngineRankLayout


class ScriptedDirectory:
    """Lists what the script says, one entry a call, and then the engine as a member."""

    def __init__(self, script: list[Callable[[], tuple[EngineRecord, ...]]]) -> None:
        self.script = script
        self.num_joins = 0
        self.script_is_over = threading.Event()

    def register_engine(
        self, engine_id: str, receiver_address: str, layouts: Sequence[EngineRankLayout]
    ) -> PolicyVersion | None:
        self.num_joins += 1
        return None

    def list_engines(self) -> tuple[EngineRecord, ...]:
        if self.script:
            return self.script.pop(0)()
        self.script_is_over.set()
        return (record(is_quarantined=False),)


def record(*, is_quarantined: bool) -> EngineRecord:
    return EngineRecord(
        engine_id="rollout-0", receiver_address="127.0.0.1:1", version=None, is_quarantined=is_quarantined
    )


def unreachable() -> tuple[EngineRecord, ...]:
    raise UnavailableError("weights service: UNAVAILABLE")


@pytest.mark.parametrize(
    ("script", "num_joins"),
    [
        ([lambda: (record(is_quarantined=False),)], 0),
        ([lambda: (record(is_quarantined=True),)], 1),
        ([lambda: ()], 1),
        ([unreachable, lambda: ()], 1),
    ],
    ids=["member", "quarantined", "unknown after a restart", "unreachable for a while"],
)
def test_watch_joins_again_exactly_when_it_must(
    script: list[Callable[[], tuple[EngineRecord, ...]]], num_joins: int
) -> None:
    directory = ScriptedDirectory(script)
    membership = Membership(
        directory, engine_id="rollout-0", receiver_address="127.0.0.1:1", layouts=(), period_seconds=0.001
    )
    watcher = threading.Thread(target=membership.watch)
    watcher.start()
    assert directory.script_is_over.wait(5)
    membership.leave()
    watcher.join(5)
    assert directory.num_joins == num_joins
