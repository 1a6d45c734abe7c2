"""The sample queue: groups wait here from generation until a checkpoint holds their effect."""

from dataclasses import dataclass
from typing import Protocol

from services.common.errors import InvalidInputError, OverloadedError, StateConflictError
from services.common.records import Group, group_id

LATE = "late"
"""Why a queued group is not trained: the lease it was made under was no longer held, or its round is over."""


@dataclass(frozen=True, kw_only=True)
class QueuedGroup:
    """A claimed group with the handle that acknowledges it."""

    entry_id: str
    """The queue's handle of the entry."""
    group: Group
    """The group."""


class SampleQueue(Protocol):
    """A durable first-in first-out queue with one consumer at a time.

    Invariants: a pushed group is delivered until it is acknowledged, also after a crash of any side; pushing a
    group id twice keeps one entry; nothing unacknowledged is ever trimmed, a full queue refuses instead; a consumer
    that opens later fences the one before it.
    """

    def push(self, group: Group) -> bool:
        """Appends a group; False when its group id was pushed before, acknowledged or not.

        Raises:
            InvalidInputError: the group belongs to another run.
            OverloadedError: the queue holds its maximum of unacknowledged groups.
            UnavailableError: the queue's server cannot be reached.
        """
        ...

    def claim(self, *, max_groups: int, timeout_seconds: float) -> list[QueuedGroup]:
        """Groups not yet delivered to this consumer since it was opened, oldest first; may be fewer, or none.

        The first claim of an object opens it as the consumer. It is first given everything that consumers before it
        had claimed and not acknowledged.

        Raises:
            StateConflictError: another consumer has opened since; this one must not train any more.
            UnavailableError: the queue's server cannot be reached.
        """
        ...

    def acknowledge(self, entry_ids: list[str]) -> None:
        """Removes entries for good; their group ids stay known. Unknown ids are ignored.

        Raises:
            StateConflictError: this object was the consumer, and another one has opened since.
        """
        ...

    def release(self, queued: QueuedGroup) -> bool:
        """Lets the group id of a claimed entry be pushed again; the entry itself stays until it is acknowledged.

        False when another entry already carries the id, which means that the group was rejected and made again
        before. Use `reject_group` of group_rejection.py, which knows the crash-safe order.
        """
        ...

    def forget_rounds_before(self, round_: int) -> None:
        """Frees the memory of group ids of earlier rounds, all of which must be acknowledged.

        A late push to such a round still returns False. The bound never goes back.
        """
        ...

    def depth(self) -> int:
        """Number of unacknowledged groups."""
        ...


def check_group_of_run(group: Group, *, run_id: str) -> None:
    """Passes a group whose id is the one of its run, round and position.

    Raises:
        InvalidInputError: it is another one.
    """
    wanted = group_id(run_id=run_id, round_=group.round, position=group.position)
    if group.group_id != wanted:
        raise InvalidInputError(
            f"group id is {group.group_id!r}, but this queue wants {wanted!r}; build it by group_id"
        )


def full_queue_error(*, max_groups: int) -> OverloadedError:
    """What a full queue answers."""
    return OverloadedError(
        f"the sample queue holds {max_groups} unacknowledged groups, its maximum; push again later, or raise "
        "redis.max_queued_groups",
        retry_after_seconds=1.0,
    )


def fenced_error() -> StateConflictError:
    """What a consumer gets after another one has opened."""
    return StateConflictError(
        "another consumer has opened this run's sample queue; one trainer is wanted, stop this one"
    )
