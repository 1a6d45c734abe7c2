"""Checks what an engine rank is told to fetch against its own layout, before a byte moves. Pure."""

import re

from services.common.errors import InvalidInputError, TransferError
from services.weights.boxes import check_box, find_overlap
from services.weights.transfer import (
    ALIGNMENT_BYTES,
    DTYPE_BYTES,
    Box,
    EngineRankLayout,
    EngineRankTransfer,
    EngineTensor,
    PieceDestination,
    PieceTransfer,
)

_DIGEST = re.compile(r"[0-9a-f]{16}")


def check_transfer(transfer: EngineRankTransfer, layout: EngineRankLayout) -> None:
    """Returns when the pieces fill each element of the layout's slices exactly once, in the right dtype and size.

    Raises:
        TransferError: a piece does not fit its parameter, or elements are left out or filled twice.
        InvalidInputError: a piece is malformed.
    """
    tensors = {(tensor.model, tensor.name): tensor for tensor in layout.tensors}
    filled: dict[tuple[str, str], list[Box]] = {key: [] for key in tensors}
    for piece in transfer.pieces:
        _check_piece(piece, num_buffers=len(transfer.buffers))
        for destination in piece.destinations:
            key = (destination.model, destination.name)
            if key not in tensors:
                raise TransferError(
                    f"piece {piece.piece.piece_id} goes to {destination.model} parameter {destination.name}, which "
                    f"engine rank {layout.rank} does not have; plan again"
                )
            _check_destination(piece, destination, tensors[key])
            filled[key].append(destination.box)
    for key, boxes in filled.items():
        _check_coverage(tensors[key], boxes, layout.rank)


def _check_piece(transfer: PieceTransfer, *, num_buffers: int) -> None:
    piece = transfer.piece
    if not _DIGEST.fullmatch(transfer.digest):
        raise InvalidInputError(f"digest {transfer.digest!r} of {piece.piece_id} is not 16 hex digits; use xxh3-64")
    if not 0 <= transfer.buffer < num_buffers:
        raise InvalidInputError(f"piece {piece.piece_id} is in buffer {transfer.buffer} of {num_buffers}; plan again")
    if piece.offset_bytes < 0 or piece.offset_bytes % ALIGNMENT_BYTES:
        raise InvalidInputError(
            f"piece {piece.piece_id} is at offset {piece.offset_bytes}; wanted a multiple of {ALIGNMENT_BYTES}"
        )
    if piece.dtype not in DTYPE_BYTES:
        raise InvalidInputError(f"piece {piece.piece_id} has dtype {piece.dtype!r}; known are {', '.join(DTYPE_BYTES)}")
    wanted = piece.box.num_elements * DTYPE_BYTES[piece.dtype]
    if piece.size_bytes != wanted or wanted == 0:
        raise TransferError(f"piece {piece.piece_id} has {piece.size_bytes} bytes, its block {wanted}; plan again")


def _check_destination(transfer: PieceTransfer, destination: PieceDestination, tensor: EngineTensor) -> None:
    piece = transfer.piece
    check_box(destination.box, tensor.shape, what=f"piece {piece.piece_id} in {tensor.model} parameter {tensor.name}")
    if piece.dtype != tensor.dtype or piece.box.num_elements != destination.box.num_elements:
        raise TransferError(
            f"piece {piece.piece_id} has {piece.box.num_elements} elements of {piece.dtype}, {tensor.model} parameter "
            f"{tensor.name} takes {destination.box.num_elements} of {tensor.dtype}; plan again"
        )


def _check_coverage(tensor: EngineTensor, boxes: list[Box], rank: int) -> None:
    wanted = sum(part.destination.num_elements for part in tensor.slices)
    seen = sum(box.num_elements for box in boxes)
    if seen != wanted or find_overlap(boxes):
        raise TransferError(
            f"engine rank {rank} {tensor.model} parameter {tensor.name}: pieces fill {seen} elements, wanted {wanted}, "
            "each once; plan again"
        )
