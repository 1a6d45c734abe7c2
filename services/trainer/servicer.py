"""TrainerService over gRPC: reads and moves the board, never touches the model."""

from collections.abc import Iterator

import grpc
from furlong.trainer.v1 import trainer_pb2, trainer_pb2_grpc

from services.common.errors import DeadlineError, InvalidInputError
from services.trainer.conversions import report_to_proto, status_to_proto
from services.trainer.reports import Board

_CHECKPOINT_SECONDS = 600.0


class TrainerServicer(trainer_pb2_grpc.TrainerServiceServicer):
    """Rank 0's face."""

    def __init__(self, board: Board) -> None:
        self._board = board

    def Train(self, request: trainer_pb2.TrainRequest, context: grpc.ServicerContext) -> trainer_pb2.TrainResponse:
        """Moves the goal."""
        if request.target_step < 1:
            raise InvalidInputError(f"target_step is {request.target_step}, wanted 1 or more")
        target_step = self._board.raise_target(request.target_step)
        version = self._board.status.version
        return trainer_pb2.TrainResponse(step=version.step if version else 0, target_step=target_step)

    def WatchSteps(
        self, request: trainer_pb2.WatchStepsRequest, context: grpc.ServicerContext
    ) -> Iterator[trainer_pb2.WatchStepsResponse]:
        """Streams reports."""
        for report in self._board.reports_from(request.first_step, is_watched=context.is_active):
            yield trainer_pb2.WatchStepsResponse(report=report_to_proto(report))

    def SaveCheckpoint(
        self, request: trainer_pb2.SaveCheckpointRequest, context: grpc.ServicerContext
    ) -> trainer_pb2.SaveCheckpointResponse:
        """Saves before the next step."""
        self._board.request_checkpoint()
        remaining = context.time_remaining()
        seconds = _CHECKPOINT_SECONDS if remaining is None else min(remaining, _CHECKPOINT_SECONDS)
        if not self._board.wait_for_checkpoint(timeout_seconds=seconds):
            raise DeadlineError(f"no checkpoint within {seconds:.1f} s; the trainer stops or its step takes longer")
        status = self._board.status
        return trainer_pb2.SaveCheckpointResponse(
            path=status.checkpoint_path, step=status.version.step if status.version else 0
        )

    def GetStatus(
        self, request: trainer_pb2.GetStatusRequest, context: grpc.ServicerContext
    ) -> trainer_pb2.GetStatusResponse:
        """What the trainer is doing."""
        return status_to_proto(self._board.status)
