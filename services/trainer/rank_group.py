"""All trainer ranks as one: rank 0 gives orders, every rank carries each of them out together.

Example:
    group = RankGroup(policy, worker)
    if rank == 0:
        replies = group.carry_out(TrainRound(step=0, groups=groups))
        group.carry_out(StopRank())
    else:
        group.follow()
"""

from typing import Protocol

from services.trainer.conversions import order_from_bytes, order_to_bytes, reply_from_bytes, reply_to_bytes
from services.trainer.orders import RankOrder, RankReply, StopRank


class Collectives(Protocol):
    """The part of the policy that reaches all ranks."""

    def broadcast_bytes(self, data: bytes | None) -> bytes:
        """Rank 0's bytes on every rank."""
        ...

    def gather_bytes(self, data: bytes) -> list[bytes] | None:
        """Every rank's bytes on rank 0."""
        ...


class RankWorker(Protocol):
    """Carries out orders on one rank."""

    def carry_out(self, order: RankOrder) -> RankReply:
        """Does this rank's part. Collective: every rank is given the same order."""
        ...


class RankGroup:
    """One rank's handle on all ranks. Rank 0 calls carry_out, every other rank follow, and nothing else does."""

    def __init__(self, collectives: Collectives, worker: RankWorker) -> None:
        self._collectives = collectives
        self._worker = worker

    def carry_out(self, order: RankOrder) -> list[RankReply]:
        """Every rank's reply, in rank order."""
        self._collectives.broadcast_bytes(order_to_bytes(order))
        replies = self._collectives.gather_bytes(reply_to_bytes(self._worker.carry_out(order)))
        assert replies is not None, "only rank 0 gives orders"
        return [reply_from_bytes(reply) for reply in replies]

    def follow(self) -> None:
        """Carries out rank 0's orders until it says stop."""
        while True:
            order = order_from_bytes(self._collectives.broadcast_bytes(None))
            self._collectives.gather_bytes(reply_to_bytes(self._worker.carry_out(order)))
            if isinstance(order, StopRank):
                return
