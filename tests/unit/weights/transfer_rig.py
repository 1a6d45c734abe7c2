"""Trainer ranks with senders, and engines with receivers, wired by a plan: everything but the control plane."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from services.common.records import PolicyVersion
from services.common.security import NO_CREDENTIALS
from services.weights.fake_engine import FakeEngine
from services.weights.piece_inventory import PieceInventory
from services.weights.plan import CompletePlan, make_plan
from services.weights.receiver import Receiver
from services.weights.sender import Sender
from services.weights.transfer import EngineRankLayout, EngineRankTransfer, SourceBuffer, SourceRankOffer
from services.weights.transport import open_receiver_transports, open_source_transport
from tests.unit.weights import tiny_world as world

ENGINE = "rollout-0"


class TransferRig:
    """One engine and all trainer ranks."""

    def __init__(
        self,
        run_id: str,
        *,
        transport: str,
        offers: Sequence[SourceRankOffer],
        layouts: Sequence[EngineRankLayout],
        bucket_bytes: int = 256,
        timeout_seconds: float = 5.0,
    ) -> None:
        self.offers, self.layouts = offers, layouts
        self.plan: CompletePlan = make_plan(offers, {ENGINE: layouts}, bucket_bytes=bucket_bytes)
        self.senders = [
            Sender(
                rank=offer.rank,
                transport=open_source_transport(
                    transport, run_id=run_id, host="127.0.0.1", credentials=NO_CREDENTIALS, idle_timeout_seconds=5.0
                ),
            )
            for offer in offers
        ]
        self.receiver = Receiver(
            run_id=run_id,
            engine_id=ENGINE,
            layouts=layouts,
            transports=open_receiver_transports(NO_CREDENTIALS),
            timeout_seconds=timeout_seconds,
        )
        self.engine = FakeEngine(layouts)

    def fill(self, tensors: dict[str, torch.Tensor]) -> list[SourceBuffer]:
        """Every rank's filled buffer."""
        return [
            sender.fill(source, world.owned(offer, tensors))
            for sender, source, offer in zip(self.senders, self.plan.ranks, self.offers, strict=True)
        ]

    def transfers(self, buffers: Sequence[SourceBuffer]) -> tuple[EngineRankTransfer, ...]:
        """What the engine must fetch."""
        return PieceInventory(self.plan, buffers).transfers(self.plan.engines[ENGINE])

    def commit(self, version: PolicyVersion) -> bool:
        """Makes the staged version live in the engine."""
        _, are_digests_equal = self.engine.commit(version, self.receiver.staged(version))
        return are_digests_equal

    def assert_engine_holds(self, tensors: dict[str, torch.Tensor]) -> None:
        """Every parameter is bit-equal to the slow reference."""
        for layout in self.layouts:
            for key, value in world.expected(layout, tensors).items():
                assert torch.equal(self.engine.parameters[key], value), key

    def close(self) -> None:
        for sender in self.senders:
            sender.close()
        self.receiver.close()


@contextmanager
def open_rig(
    run_id: str,
    *,
    transport: str = "shm",
    offers: Sequence[SourceRankOffer] | None = None,
    layouts: Sequence[EngineRankLayout] | None = None,
    bucket_bytes: int = 256,
    timeout_seconds: float = 5.0,
) -> Iterator[TransferRig]:
    """A rig that cleans up."""
    rig = TransferRig(
        run_id,
        transport=transport,
        offers=offers or world.offers(),
        layouts=layouts or world.layouts(),
        bucket_bytes=bucket_bytes,
        timeout_seconds=timeout_seconds,
    )
    try:
        yield rig
    finally:
        rig.close()
