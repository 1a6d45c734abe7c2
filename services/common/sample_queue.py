"""The sample queue: groups wait here from generation until a checkpoint holds their effect."""

from dataclasses import dataclass
from typing import Protocol

from services.common.records import Group


@dataclass(frozen=True, kw_only=True)
class QueuedGroup:
    """A claimed group with the handle that acknowledges it."""

    entry_id: str
    """The queue's handle of the entry."""
    group: Group
    """The group."""


class SampleQueue(Protocol):
    """A durable first-in first-out queue with one consumer group.

    Invariants: a pushed group is delivered until it is acknowledged, also after a crash of any side; pushing a
    group id twice keeps one entry; nothing unacknowledged is ever trimmed, a full queue refuses instead.
    """

    def push(self, group: Group) -> bool:
        """Appends a group; False when its group id was pushed before, acknowledged or not.

        Raises:
            OverloadedError: the queue holds its maximum of unacknowledged groups.
            UnavailableError: the queue's server cannot be reached.
        """
        ...

    def claim(self, *, max_groups: int, timeout_seconds: float) -> list[QueuedGroup]:
        """Groups not yet delivered to this consumer since it was opened, oldest first; may be fewer, or none.

        A consumer that opens again is first given what it (or a consumer that died) had claimed and not
        acknowledged.
        """
        ...

    def acknowledge(self, entry_ids: list[str]) -> None:
        """Removes entries for good. Unknown ids are ignored."""
        ...

    def depth(self) -> int:
        """Number of unacknowledged groups."""
        ...
