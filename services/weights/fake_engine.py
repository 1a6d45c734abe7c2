"""A fake engine for tests: plain tensors as parameters, committed the way a real engine must."""

from collections.abc import Sequence

import torch

from services.common.records import PolicyVersion
from services.weights.segment import open_segment
from services.weights.tensor_memory import digest_tensor, tensor_view
from services.weights.transfer import EngineRankLayout, StagedPiece, StagedRank

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


class FakeEngine:
    """An EngineCommitter whose live parameters a test may read."""

    def __init__(self, layouts: Sequence[EngineRankLayout]) -> None:
        self.version: PolicyVersion | None = None
        self.num_commits = 0
        self.parameters = {
            (layout.rank, tensor.model, tensor.name): torch.zeros(tensor.shape, dtype=_DTYPES[tensor.dtype])
            for layout in layouts
            for tensor in layout.tensors
        }

    def commit(self, version: PolicyVersion, staged: Sequence[StagedRank]) -> tuple[float, bool]:
        """Copies staging into the parameters and compares what it reads back."""
        for rank in staged:
            segment = open_segment(rank.segment, is_writable=True)
            for piece in rank.pieces:
                self._copy(rank.rank, piece, segment.view)
            segment.close()
        self.version = version
        self.num_commits += 1
        return 0.001, all(self._is_equal(rank.rank, piece) for rank in staged for piece in rank.pieces)

    def _copy(self, rank: int, piece: StagedPiece, memory: memoryview) -> None:
        source = tensor_view(memory, offset_bytes=piece.offset_bytes, shape=piece.shape, dtype=piece.dtype)
        for destination in piece.destinations:
            parameter = self.parameters[rank, destination.model, destination.name]
            parameter[destination.box.slices].copy_(source.view(destination.box.sizes))

    def _is_equal(self, rank: int, piece: StagedPiece) -> bool:
        return all(
            digest_tensor(self.parameters[rank, d.model, d.name][d.box.slices]) == piece.digest
            for d in piece.destinations
        )
