"""Orders and replies survive the way between ranks unchanged."""

from pathlib import Path

import pytest

from services.common.errors import InvalidInputError
from services.common.records import FinishReason, Group, Sample, VersionSpan
from services.trainer.conversions import order_from_bytes, order_to_bytes, reply_from_bytes, reply_to_bytes
from services.trainer.orders import (
    FillBuffer,
    KeepBuffer,
    KeepReference,
    LoadPolicy,
    OfferShards,
    RankOrder,
    RankReply,
    ResetOptimizer,
    SavePolicy,
    StopRank,
    TrainRound,
    WarmStartStep,
)
from services.trainer.rank_group import RankGroup
from services.weights.transfer import Box, Piece, SourceBuffer, SourceRankOffer, SourceRankPlan, SourceShard

SAMPLE = Sample(
    sample_id="run/3/7/0",
    response_token_ids=(9, 0),
    logprobs=(-0.5, -0.25),
    version_spans=(VersionSpan(step=2, num_tokens=1), VersionSpan(step=3, num_tokens=1)),
    reward=1.0,
    finish_reason=FinishReason.LENGTH,
    num_verify_steps=1,
)
GROUP = Group(group_id="run/3/7", round=3, position=7, prompt_token_ids=(1, 2), samples=(SAMPLE,))
BOX = Box(starts=(0, 4), sizes=(2, 4))
PIECE = Piece(piece_id="p", tensor="t", box=BOX, dtype="bfloat16", offset_bytes=64, size_bytes=16)

ORDERS: list[RankOrder] = [
    TrainRound(step=3, groups=(GROUP,)),
    TrainRound(step=4, groups=()),
    WarmStartStep(step=5),
    OfferShards(),
    FillBuffer(plans=(SourceRankPlan(rank=1, pieces=(PIECE,)),)),
    KeepBuffer(),
    SavePolicy(folder=Path("/a/b"), with_optimizer=True),
    LoadPolicy(folder=Path("/a/b"), with_optimizer=True),
    ResetOptimizer(),
    KeepReference(),
    StopRank(),
]
REPLIES = [
    RankReply(),
    RankReply(figures={"policy_loss": 0.5}),
    RankReply(offer=SourceRankOffer(rank=1, shards=(SourceShard(tensor="t", tensor_shape=(2, 8), box=BOX),))),
    RankReply(buffer=SourceBuffer(rank=1, transport="shm", endpoint="segment", digests=("0" * 16,))),
]


@pytest.mark.parametrize("order", ORDERS, ids=lambda order: type(order).__name__)
def test_an_order_survives_the_wire(order: RankOrder) -> None:
    assert order_from_bytes(order_to_bytes(order)) == order


@pytest.mark.parametrize("reply", REPLIES)
def test_a_reply_survives_the_wire(reply: RankReply) -> None:
    assert reply_from_bytes(reply_to_bytes(reply)) == reply


def test_bytes_without_an_order_are_refused() -> None:
    with pytest.raises(InvalidInputError, match="names the work None"):
        order_from_bytes(b"")


class RecordingWorker:
    """Answers every order with the rank's number."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.orders: list[RankOrder] = []

    def carry_out(self, order: RankOrder) -> RankReply:
        self.orders.append(order)
        return RankReply(figures={"rank": float(self.rank)})


class TwoRanks:
    """Collectives of two ranks in one process: rank 1 follows whatever rank 0 has broadcast."""

    def __init__(self) -> None:
        self.follower = RecordingWorker(1)
        self.broadcast: list[bytes] = []

    def broadcast_bytes(self, data: bytes | None) -> bytes:
        if data is None:
            return self.broadcast.pop(0)
        self.broadcast.append(data)
        return data

    def gather_bytes(self, data: bytes) -> list[bytes] | None:
        order = order_from_bytes(self.broadcast[-1])
        return [data, reply_to_bytes(self.follower.carry_out(order))]


def test_rank_0_gets_every_ranks_reply_in_rank_order() -> None:
    ranks = RankGroup(TwoRanks(), RecordingWorker(0))
    assert [reply.figures["rank"] for reply in ranks.carry_out(OfferShards())] == [0.0, 1.0]


def test_a_follower_carries_out_orders_until_it_is_stopped() -> None:
    collectives, worker = TwoRanks(), RecordingWorker(1)
    collectives.gather_bytes = lambda data: None  # type: ignore[method-assign]
    collectives.broadcast = [order_to_bytes(order) for order in (KeepBuffer(), WarmStartStep(step=0), StopRank())]
    RankGroup(collectives, worker).follow()
    assert worker.orders == [KeepBuffer(), WarmStartStep(step=0), StopRank()]
