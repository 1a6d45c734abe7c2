"""Stages a hub folder's tensors for an engine rank in one segment, as the receiver does."""

from collections.abc import Mapping

import torch
from torch import Tensor

from services.weights.segment import Segment, create_segment
from services.weights.tensor_memory import digest_tensor
from services.weights.transfer import EngineRankLayout, PieceDestination, StagedPiece, StagedRank


def stage(layout: EngineRankLayout, tensors: Mapping[str, Tensor], *, run_id: str) -> tuple[StagedRank, Segment]:
    """One piece per slice of the layout, and the segment that holds them."""
    pieces: list[StagedPiece] = []
    blocks: list[tuple[int, bytes]] = []
    offset = 0
    for tensor in layout.tensors:
        for part in tensor.slices:
            block = tensors[part.tensor][part.source.slices].to(getattr(torch, tensor.dtype)).contiguous()
            data = block.reshape(-1).view(torch.uint8).numpy().tobytes()
            destination = PieceDestination(model=tensor.model, name=tensor.name, box=part.destination)
            pieces.append(
                StagedPiece(
                    offset_bytes=offset,
                    size_bytes=len(data),
                    shape=tuple(block.shape),
                    dtype=tensor.dtype,
                    digest=digest_tensor(block),
                    destinations=(destination,),
                )
            )
            blocks.append((offset, data))
            offset += -(-len(data) // 64) * 64
    segment = create_segment(run_id=run_id, label=f"rank-{layout.rank}", size_bytes=offset)
    for start, data in blocks:
        segment.view[start : start + len(data)] = data
    return StagedRank(rank=layout.rank, segment=segment.name, pieces=tuple(pieces)), segment
