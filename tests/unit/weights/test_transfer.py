"""From sender to engine, bit for bit, and what happens when bytes are wrong, missing, late or refused."""

import dataclasses
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from services.common.errors import (
    AbortedError,
    DeadlineError,
    FurlongError,
    InvalidInputError,
    StateConflictError,
    TransferError,
    UnavailableError,
)
from services.common.records import PolicyVersion
from services.weights.piece_inventory import PieceInventory
from services.weights.segment import open_segment
from services.weights.transfer import EngineRankTransfer, SourceBuffer
from tests.unit.weights import tiny_world as world
from tests.unit.weights.transfer_rig import TransferRig, open_rig

V1, V2 = PolicyVersion(run_id="r", step=1), PolicyVersion(run_id="r", step=2)


@pytest.mark.parametrize("transport", ["shm", "tcp"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("tp", "dp", "engine_tp"), [(1, 1, 1), (2, 2, 1), (1, 2, 2), (4, 1, 2), (2, 1, 4)])
def test_every_parameter_arrives_bit_exact(run_id, transport: str, dtype: str, tp: int, dp: int, engine_tp: int):
    tensors = world.hub_tensors()
    with open_rig(
        run_id, transport=transport, offers=world.offers(tp=tp, dp=dp), layouts=world.layouts(engine_tp, dtype)
    ) as rig:
        figures = rig.receiver.prepare(V1, rig.transfers(rig.fill(tensors)))
        assert rig.commit(V1)
        rig.assert_engine_holds(tensors)
        fetched = sum(p.piece.size_bytes for rank in rig.plan.engines["rollout-0"] for p in rank.pieces)
        assert figures.num_bytes == fetched


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_buffers_and_staging_are_reused_over_versions(run_id, transport: str):
    with open_rig(run_id, transport=transport) as rig:
        endpoints, segments = [], []
        for step in range(1, 6):
            version, tensors = PolicyVersion(run_id="r", step=step), world.hub_tensors(seed=step)
            buffers = rig.fill(tensors)
            rig.receiver.prepare(version, rig.transfers(buffers))
            assert rig.commit(version)
            rig.assert_engine_holds(tensors)
            rig.senders[0].keep()
            endpoints.append(buffers[0].endpoint)
            segments.append(rig.receiver.staged(version)[0].segment)
        assert endpoints[0] != endpoints[1]
        assert endpoints == [endpoints[step % 2] for step in range(5)]
        assert len(set(segments)) == 1


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_kept_version_stays_readable_while_others_are_filled(run_id, transport: str):
    tensors = world.hub_tensors(seed=1)
    with open_rig(run_id, transport=transport) as rig:
        transfers = rig.transfers(rig.fill(tensors))
        rig.senders[0].keep()
        for seed in (2, 3):
            rig.fill(world.hub_tensors(seed=seed))
        rig.receiver.prepare(V1, transfers)
        assert rig.commit(V1)
        rig.assert_engine_holds(tensors)


def test_keep_without_a_fill_changes_nothing(run_id):
    with open_rig(run_id) as rig:
        transfers = rig.transfers(rig.fill(world.hub_tensors(seed=1)))
        rig.senders[0].keep()
        rig.senders[0].keep()
        rig.fill(world.hub_tensors(seed=2))
        rig.receiver.prepare(V1, transfers)


def test_overtaken_reader_reports_digests_instead_of_mixing_versions(run_id):
    with open_rig(run_id) as rig:
        transfers = rig.transfers(rig.fill(world.hub_tensors(seed=1)))
        rig.fill(world.hub_tensors(seed=2))
        with pytest.raises(TransferError, match=r"from rank 0 \(shm furlong-.*\) has digest [0-9a-f]{16}, wanted"):
            rig.receiver.prepare(V1, transfers)


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_one_corrupted_byte_is_found_and_nothing_is_staged(run_id, transport: str):
    with open_rig(run_id, transport=transport) as rig:
        buffers = rig.fill(world.hub_tensors())
        piece = rig.plan.ranks[0].pieces[-1]
        view = rig.senders[0]._spare.view
        view[piece.offset_bytes + piece.size_bytes - 1] ^= 1
        with pytest.raises(TransferError) as caught:
            rig.receiver.prepare(V1, rig.transfers(buffers))
        assert piece.piece_id in str(caught.value)
        with pytest.raises(StateConflictError, match="has nothing staged, wanted version r@1"):
            rig.receiver.staged(V1)


def change_piece(rig: TransferRig, **fields: object) -> list[EngineRankTransfer]:
    """The transfers with one field of the first piece changed."""
    first, *rest = rig.transfers(rig.fill(world.hub_tensors()))
    piece = dataclasses.replace(first.pieces[0].piece, **fields)
    pieces = (dataclasses.replace(first.pieces[0], piece=piece), *first.pieces[1:])
    return [dataclasses.replace(first, pieces=pieces), *rest]


@pytest.mark.parametrize(
    ("fields", "error", "message"),
    [
        ({"size_bytes": 12}, TransferError, "has 12 bytes, its block"),
        ({"dtype": "bfloat16"}, TransferError, "has 16 bytes, its block 8"),
        ({"dtype": "int4"}, InvalidInputError, "dtype 'int4'; known are"),
        ({"offset_bytes": 8}, InvalidInputError, "is at offset 8; wanted a multiple of 64"),
        ({"offset_bytes": 1 << 40}, TransferError, "has .* bytes, .* are wanted"),
        ({"box": world.box((0, 3)), "size_bytes": 12}, TransferError, "has 3 elements of float32, .* takes 4"),
    ],
)
def test_wrong_size_dtype_or_place_is_refused(run_id, fields, error: type[FurlongError], message: str):
    with open_rig(run_id) as rig:
        # The first piece in the buffer is the fp32 bias: 4 elements, 16 bytes.
        transfers = change_piece(rig, **fields)
        with pytest.raises(error, match=message):
            rig.receiver.prepare(V1, transfers)


def test_transfers_that_leave_elements_out_or_fill_them_twice_are_refused(run_id):
    with open_rig(run_id) as rig:
        (transfer,) = rig.transfers(rig.fill(world.hub_tensors()))
        short = dataclasses.replace(transfer, pieces=transfer.pieces[1:])
        with pytest.raises(TransferError, match=r"gate.bias: pieces fill 0 elements, wanted 4"):
            rig.receiver.prepare(V1, [short])
        twice = dataclasses.replace(transfer, pieces=(*transfer.pieces, transfer.pieces[-1]))
        with pytest.raises(TransferError, match="each once"):
            rig.receiver.prepare(V1, [twice])
        with pytest.raises(InvalidInputError, match=r"ranks \[\], engine rollout-0 has ranks \[0\]"):
            rig.receiver.prepare(V1, [])


def test_unknown_transport_and_malformed_endpoints_are_refused(run_id):
    with open_rig(run_id) as rig:
        buffers = rig.fill(world.hub_tensors())
        for transport, endpoint, message in (
            ("rdma", "x", "transport 'rdma', this engine knows shm, tcp"),
            ("shm", "../etc/passwd", "segment name '../etc/passwd' is unusable"),
            ("tcp", "127.0.0.1", "wanted host:port/buffer"),
        ):
            bad = [dataclasses.replace(buffers[0], transport=transport, endpoint=endpoint)]
            with pytest.raises(InvalidInputError, match=message):
                rig.receiver.prepare(V1, rig.transfers(bad))


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_dead_source_is_unavailable(run_id, transport: str):
    with open_rig(run_id, transport=transport) as rig:
        transfers = rig.transfers(rig.fill(world.hub_tensors()))
        rig.senders[0].close()
        with pytest.raises(UnavailableError):
            rig.receiver.prepare(V1, transfers)


def test_preparing_again_replaces_what_was_staged(run_id):
    with open_rig(run_id) as rig:
        rig.receiver.prepare(V1, rig.transfers(rig.fill(world.hub_tensors(seed=1))))
        newest = world.hub_tensors(seed=2)
        rig.receiver.prepare(V1, rig.transfers(rig.fill(newest)))
        assert rig.commit(V1)
        rig.assert_engine_holds(newest)
        rig.receiver.prepare(V2, rig.transfers(rig.fill(newest)))
        with pytest.raises(StateConflictError, match="has r@2 staged, wanted version r@1"):
            rig.receiver.staged(V1)


def test_abort_forgets_the_version_and_only_that(run_id):
    with open_rig(run_id) as rig:
        rig.receiver.prepare(V2, rig.transfers(rig.fill(world.hub_tensors())))
        rig.receiver.abort(V1)
        assert rig.receiver.is_staged(V2)
        rig.receiver.abort(V2)
        rig.receiver.abort(V2)
        assert not rig.receiver.is_staged(V2)


@contextmanager
def hostile_source(reply: bytes, *, then: str) -> Iterator[str]:
    """A source that greets, takes any proof, sends the reply to the first request, and then ends, hangs or drips."""
    listener = socket.create_server(("127.0.0.1", 0))
    stop = threading.Event()

    def serve() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.sendall(b"FLW1" + bytes(32))
            connection.recv(32)
            connection.sendall(b"\0")
            connection.recv(1024)
            connection.sendall(reply)
            while then != "end" and not stop.wait(0.02):
                if then == "drip":
                    connection.sendall(b"\0")

    thread = threading.Thread(target=serve)
    thread.start()
    yield f"127.0.0.1:{listener.getsockname()[1]}/any"
    stop.set()
    thread.join()
    listener.close()


def hostile_transfers(rig: TransferRig, endpoint: str) -> tuple[EngineRankTransfer, ...]:
    (buffer,) = rig.fill(world.hub_tensors())
    return rig.transfers([SourceBuffer(rank=0, transport="tcp", endpoint=endpoint, digests=buffer.digests)])


def run_length(rig: TransferRig) -> bytes:
    """The header of a right answer to the first request: everything in one run."""
    last = rig.plan.ranks[0].pieces[-1]
    return b"\0" + (last.offset_bytes + last.size_bytes).to_bytes(8, "big")


def test_truncated_stream_is_a_transfer_error(run_id):
    with (
        open_rig(run_id, transport="tcp") as rig,
        hostile_source(run_length(rig) + b"x" * 100, then="end") as endpoint,
        pytest.raises(TransferError, match="ended the stream after 100 of"),
    ):
        rig.receiver.prepare(V1, hostile_transfers(rig, endpoint))


def test_reply_of_another_length_is_a_transfer_error(run_id):
    reply = b"\0" + (10**15).to_bytes(8, "big")
    with (
        open_rig(run_id, transport="tcp") as rig,
        hostile_source(reply, then="end") as endpoint,
        pytest.raises(TransferError, match="has no bytes"),
    ):
        rig.receiver.prepare(V1, hostile_transfers(rig, endpoint))


@pytest.mark.parametrize("then", ["hang", "drip"])
def test_slow_source_meets_the_deadline_however_it_is_slow(run_id, then: str):
    with (
        open_rig(run_id, transport="tcp", timeout_seconds=0.3) as rig,
        hostile_source(run_length(rig), then=then) as endpoint,
    ):
        started = time.monotonic()
        with pytest.raises(DeadlineError, match="in time"):
            rig.receiver.prepare(V1, hostile_transfers(rig, endpoint))
        assert time.monotonic() - started < 8.0


@pytest.mark.parametrize("how", ["abort", "prepare", "close"])
def test_receiving_is_given_up_at_once_although_the_source_hangs(run_id, how: str):
    with open_rig(run_id, transport="tcp", timeout_seconds=30.0) as rig, hostile_source(b"", then="hang") as endpoint:
        errors: list[FurlongError] = []

        def prepare() -> None:
            try:
                rig.receiver.prepare(V1, hostile_transfers(rig, endpoint))
            except FurlongError as error:
                errors.append(error)

        thread = threading.Thread(target=prepare)
        thread.start()
        time.sleep(0.2)
        if how == "abort":
            rig.receiver.abort(V1)
        elif how == "close":
            rig.receiver.close()
        else:
            rig.receiver.prepare(V2, rig.transfers(rig.fill(world.hub_tensors())))
            assert rig.receiver.is_staged(V2)
        thread.join(timeout=2.0)
        assert not thread.is_alive()
        assert [type(error) for error in errors] == [AbortedError]


def test_sender_refuses_plans_and_shards_that_are_not_its_own(run_id):
    tensors = world.hub_tensors()
    with open_rig(run_id, offers=world.offers(tp=2)) as rig:
        with pytest.raises(InvalidInputError, match="plan is for rank 1, this is rank 0"):
            rig.senders[0].fill(rig.plan.ranks[1], [])
        other = world.owned(rig.offers[1], tensors)
        with pytest.raises(InvalidInputError, match="no shard of this rank holds"):
            rig.senders[0].fill(rig.plan.ranks[0], other)
        bent = [dataclasses.replace(item, tensor=torch.zeros(3)) for item in world.owned(rig.offers[0], tensors)]
        with pytest.raises(InvalidInputError, match=r"comes as shape \[3\]"):
            rig.senders[0].fill(rig.plan.ranks[0], bent)


def test_inventory_refuses_buffers_that_do_not_match_the_plan(run_id):
    with open_rig(run_id, offers=world.offers(dp=2)) as rig:
        first, second = rig.fill(world.hub_tensors())
        for buffers, message in (
            ([first], "the buffer of rank 1 is missing"),
            ([first, first], r"ranks \[0, 0\] repeat"),
            ([first, second, dataclasses.replace(first, rank=7)], r"ranks \[7\] are not in plan"),
            ([first, dataclasses.replace(second, digests=())], "has 0 digests"),
            ([first, dataclasses.replace(second, digests=("?",) * len(second.digests))], "not 16 hex digits"),
        ):
            with pytest.raises(InvalidInputError, match=message):
                PieceInventory(rig.plan, buffers)


def test_staging_is_readable_by_name_in_other_processes(run_id):
    with open_rig(run_id) as rig:
        rig.receiver.prepare(V1, rig.transfers(rig.fill(world.hub_tensors())))
        (staged,) = rig.receiver.staged(V1)
        segment = open_segment(staged.segment)
        assert segment.view.readonly
        assert segment.size_bytes >= staged.pieces[-1].offset_bytes + staged.pieces[-1].size_bytes
        segment.close()
