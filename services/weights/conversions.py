"""Pure maps between the weights records and their protobuf messages."""

from furlong.common.v1 import sample_pb2
from furlong.weights.v1 import transfer_pb2, weights_pb2

from services.common.conversions import version_from_proto, version_to_proto
from services.common.errors import InvalidInputError
from services.common.records import PolicyVersion
from services.weights.published import EngineOutcome, EngineRecord, PublishOutcome, VersionRecord, VersionState
from services.weights.transfer import (
    Box,
    EngineRankLayout,
    EngineRankTransfer,
    EngineSlice,
    EngineTensor,
    Piece,
    PieceDestination,
    PieceTransfer,
    SourceBuffer,
    SourceRankOffer,
    SourceRankPlan,
    SourceShard,
)

_STATE_TO_PROTO = {
    VersionState.PREPARED: weights_pb2.VERSION_STATE_PREPARED,
    VersionState.TRANSFERRING: weights_pb2.VERSION_STATE_TRANSFERRING,
    VersionState.VERIFIED: weights_pb2.VERSION_STATE_VERIFIED,
    VersionState.COMMITTED: weights_pb2.VERSION_STATE_COMMITTED,
    VersionState.ABORTED: weights_pb2.VERSION_STATE_ABORTED,
}
_STATE_FROM_PROTO = {proto: state for state, proto in _STATE_TO_PROTO.items()}


def required_version(message: sample_pb2.PolicyVersion) -> PolicyVersion:
    """The version of a message that must name one.

    Raises:
        InvalidInputError: its run id is empty.
    """
    version = version_from_proto(message)
    if version is None:
        raise InvalidInputError("the version has an empty run id; give run id and step")
    return version


def box_to_proto(box: Box) -> transfer_pb2.Box:
    """The message of a box."""
    return transfer_pb2.Box(starts=box.starts, sizes=box.sizes)


def box_from_proto(message: transfer_pb2.Box) -> Box:
    """The box of a message.

    Raises:
        InvalidInputError: starts and sizes differ in length.
    """
    if len(message.starts) != len(message.sizes):
        raise InvalidInputError(f"a box has {len(message.starts)} starts and {len(message.sizes)} sizes; give as many")
    return Box(starts=tuple(message.starts), sizes=tuple(message.sizes))


def source_rank_offer_to_proto(offer: SourceRankOffer) -> transfer_pb2.SourceRankOffer:
    """The message of an offer."""
    shards = [
        transfer_pb2.SourceShard(tensor=s.tensor, tensor_shape=s.tensor_shape, box=box_to_proto(s.box))
        for s in offer.shards
    ]
    return transfer_pb2.SourceRankOffer(rank=offer.rank, shards=shards)


def source_rank_offer_from_proto(message: transfer_pb2.SourceRankOffer) -> SourceRankOffer:
    """The offer of a message."""
    shards = tuple(
        SourceShard(tensor=s.tensor, tensor_shape=tuple(s.tensor_shape), box=box_from_proto(s.box))
        for s in message.shards
    )
    return SourceRankOffer(rank=message.rank, shards=shards)


def layout_to_proto(layout: EngineRankLayout) -> transfer_pb2.EngineRankLayout:
    """The message of an engine rank's layout."""
    return transfer_pb2.EngineRankLayout(rank=layout.rank, tensors=[_tensor_to_proto(t) for t in layout.tensors])


def layout_from_proto(message: transfer_pb2.EngineRankLayout) -> EngineRankLayout:
    """The layout of a message."""
    return EngineRankLayout(rank=message.rank, tensors=tuple(_tensor_from_proto(t) for t in message.tensors))


def source_rank_plan_to_proto(plan: SourceRankPlan) -> transfer_pb2.SourceRankPlan:
    """The message of a source rank's plan."""
    return transfer_pb2.SourceRankPlan(rank=plan.rank, pieces=[piece_to_proto(piece) for piece in plan.pieces])


def source_rank_plan_from_proto(message: transfer_pb2.SourceRankPlan) -> SourceRankPlan:
    """The plan of a message."""
    return SourceRankPlan(rank=message.rank, pieces=tuple(piece_from_proto(piece) for piece in message.pieces))


def piece_to_proto(piece: Piece) -> transfer_pb2.Piece:
    """The message of a piece."""
    return transfer_pb2.Piece(
        piece_id=piece.piece_id,
        tensor=piece.tensor,
        box=box_to_proto(piece.box),
        dtype=piece.dtype,
        offset_bytes=piece.offset_bytes,
        size_bytes=piece.size_bytes,
    )


def piece_from_proto(message: transfer_pb2.Piece) -> Piece:
    """The piece of a message."""
    return Piece(
        piece_id=message.piece_id,
        tensor=message.tensor,
        box=box_from_proto(message.box),
        dtype=message.dtype,
        offset_bytes=message.offset_bytes,
        size_bytes=message.size_bytes,
    )


def source_buffer_to_proto(buffer: SourceBuffer) -> transfer_pb2.SourceBuffer:
    """The message of a buffer's description."""
    return transfer_pb2.SourceBuffer(
        rank=buffer.rank, transport=buffer.transport, endpoint=buffer.endpoint, digests=buffer.digests
    )


def source_buffer_from_proto(message: transfer_pb2.SourceBuffer) -> SourceBuffer:
    """The description of a message."""
    return SourceBuffer(
        rank=message.rank, transport=message.transport, endpoint=message.endpoint, digests=tuple(message.digests)
    )


def transfer_to_proto(transfer: EngineRankTransfer) -> transfer_pb2.EngineRankTransfer:
    """The message of what an engine rank fetches."""
    pieces = [
        transfer_pb2.PieceTransfer(
            piece=piece_to_proto(t.piece),
            digest=t.digest,
            buffer=t.buffer,
            destinations=[
                transfer_pb2.PieceDestination(model=d.model, name=d.name, box=box_to_proto(d.box))
                for d in t.destinations
            ],
        )
        for t in transfer.pieces
    ]
    buffers = [source_buffer_to_proto(buffer) for buffer in transfer.buffers]
    return transfer_pb2.EngineRankTransfer(rank=transfer.rank, buffers=buffers, pieces=pieces)


def transfer_from_proto(message: transfer_pb2.EngineRankTransfer) -> EngineRankTransfer:
    """What an engine rank fetches, of a message."""
    pieces = tuple(
        PieceTransfer(
            piece=piece_from_proto(t.piece),
            digest=t.digest,
            buffer=t.buffer,
            destinations=tuple(
                PieceDestination(model=d.model, name=d.name, box=box_from_proto(d.box)) for d in t.destinations
            ),
        )
        for t in message.pieces
    )
    buffers = tuple(source_buffer_from_proto(buffer) for buffer in message.buffers)
    return EngineRankTransfer(rank=message.rank, buffers=buffers, pieces=pieces)


def version_record_to_proto(record: VersionRecord) -> weights_pb2.VersionRecord:
    """The message of a version's record."""
    return weights_pb2.VersionRecord(
        version=version_to_proto(record.version), state=_STATE_TO_PROTO[record.state], reason=record.reason
    )


def version_record_from_proto(message: weights_pb2.VersionRecord) -> VersionRecord:
    """The record of a message."""
    return VersionRecord(
        version=required_version(message.version), state=_state_from_proto(message.state), reason=message.reason
    )


def engine_record_to_proto(record: EngineRecord) -> weights_pb2.EngineRecord:
    """The message of an engine's record."""
    return weights_pb2.EngineRecord(
        engine_id=record.engine_id,
        receiver_address=record.receiver_address,
        version=version_to_proto(record.version) if record.version else None,
        is_quarantined=record.is_quarantined,
    )


def engine_record_from_proto(message: weights_pb2.EngineRecord) -> EngineRecord:
    """The record of a message."""
    return EngineRecord(
        engine_id=message.engine_id,
        receiver_address=message.receiver_address,
        version=version_from_proto(message.version),
        is_quarantined=message.is_quarantined,
    )


def outcome_to_proto(outcome: PublishOutcome) -> weights_pb2.PublishVersionResponse:
    """The message of an outcome."""
    return weights_pb2.PublishVersionResponse(
        state=_STATE_TO_PROTO[outcome.state],
        reason=outcome.reason,
        engines=[
            weights_pb2.EngineOutcome(
                engine_id=engine.engine_id,
                num_bytes=engine.num_bytes,
                prepare_seconds=engine.prepare_seconds,
                pause_seconds=engine.pause_seconds,
                are_digests_equal=engine.are_digests_equal,
                error=engine.error,
            )
            for engine in outcome.engines
        ],
        seconds=outcome.seconds,
    )


def outcome_from_proto(message: weights_pb2.PublishVersionResponse) -> PublishOutcome:
    """The outcome of a message."""
    return PublishOutcome(
        state=_state_from_proto(message.state),
        reason=message.reason,
        engines=tuple(
            EngineOutcome(
                engine_id=engine.engine_id,
                num_bytes=engine.num_bytes,
                prepare_seconds=engine.prepare_seconds,
                pause_seconds=engine.pause_seconds,
                are_digests_equal=engine.are_digests_equal,
                error=engine.error,
            )
            for engine in message.engines
        ),
        seconds=message.seconds,
    )


def _tensor_to_proto(tensor: EngineTensor) -> transfer_pb2.EngineTensor:
    slices = [
        transfer_pb2.EngineSlice(
            tensor=part.tensor, source=box_to_proto(part.source), destination=box_to_proto(part.destination)
        )
        for part in tensor.slices
    ]
    return transfer_pb2.EngineTensor(
        model=tensor.model, name=tensor.name, shape=tensor.shape, dtype=tensor.dtype, slices=slices
    )


def _tensor_from_proto(message: transfer_pb2.EngineTensor) -> EngineTensor:
    slices = tuple(
        EngineSlice(tensor=s.tensor, source=box_from_proto(s.source), destination=box_from_proto(s.destination))
        for s in message.slices
    )
    return EngineTensor(
        model=message.model, name=message.name, shape=tuple(message.shape), dtype=message.dtype, slices=slices
    )


def _state_from_proto(state: weights_pb2.VersionState.ValueType) -> VersionState:
    if state not in _STATE_FROM_PROTO:
        raise InvalidInputError(f"version state {state} is unknown; use a client as new as the server")
    return _STATE_FROM_PROTO[state]
