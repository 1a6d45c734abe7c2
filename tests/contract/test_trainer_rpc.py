"""Every call of TrainerService over a real server."""

import threading
from collections.abc import Iterator
from dataclasses import replace

import grpc
import pytest
from furlong.trainer.v1 import trainer_pb2, trainer_pb2_grpc
from prometheus_client import CollectorRegistry

from services.common.channels import call, open_channel
from services.common.errors import InvalidInputError
from services.common.prompt_ledger import RoundState
from services.common.records import PolicyVersion
from services.common.security import NO_CREDENTIALS
from services.common.server import ServedService, Server
from services.common.telemetry import CallMetrics
from services.trainer.reports import Board, Phase, PublishSummary, StepReport, UpdateSummary
from services.trainer.round_summary import summarize_round
from services.trainer.sample_selection import SelectedSamples
from services.trainer.servicer import TrainerServicer


def make_report(step: int, held_out_accuracy: float | None = None) -> StepReport:
    return StepReport(
        step=step,
        round=replace(
            summarize_round(
                [],
                RoundState(round=step, num_accepted=0, num_leased=0, num_spent=0),
                [],
                SelectedSamples(indices=()),
                num_rejected={},
            ),
            num_samples_left_out={"overlong": 3},
        ),
        update=UpdateSummary(
            policy_loss=0.25,
            logprob_mismatch_max=0.5,
            importance_cut_fraction=0.125,
            rejected_token_fraction=0.375,
            sequence_masked_fraction=0.625,
            kl=0.75,
        ),
        publish=PublishSummary(
            is_committed=True, are_digests_equal=True, sync_seconds=0.5, pause_seconds=0.125, num_aborted=0
        ),
        wait_seconds=1.0,
        train_seconds=2.0,
        held_out_accuracy=held_out_accuracy,
        queue_depth=3,
    )


@pytest.fixture
def board() -> Iterator[Board]:
    board = Board()
    yield board
    board.close()


@pytest.fixture
def stub(board: Board) -> Iterator[trainer_pb2_grpc.TrainerServiceStub]:
    service = ServedService(
        full_name="furlong.trainer.v1.TrainerService",
        add_to=lambda server: trainer_pb2_grpc.add_TrainerServiceServicer_to_server(TrainerServicer(board), server),
    )
    metrics = CallMetrics("trainer", CollectorRegistry())
    server = Server([service], address="127.0.0.1:0", credentials=NO_CREDENTIALS, metrics=metrics)
    with open_channel(f"127.0.0.1:{server.port}", NO_CREDENTIALS) as channel:
        yield trainer_pb2_grpc.TrainerServiceStub(channel)
    board.close()
    server.stop(grace_seconds=0)


def test_train_moves_the_goal_and_tells_the_step(board: Board, stub: trainer_pb2_grpc.TrainerServiceStub) -> None:
    board.status.version = PolicyVersion(run_id="r", step=4)
    reply = stub.Train(trainer_pb2.TrainRequest(request_id="a", target_step=10), timeout=5)
    assert (reply.step, reply.target_step) == (4, 10)
    again = stub.Train(trainer_pb2.TrainRequest(request_id="b", target_step=7), timeout=5)
    assert again.target_step == 10


def test_a_goal_of_zero_is_refused(stub: trainer_pb2_grpc.TrainerServiceStub) -> None:
    with pytest.raises(InvalidInputError, match="target_step is 0, wanted 1 or more"):
        call(lambda: stub.Train(trainer_pb2.TrainRequest(), timeout=5), peer="trainer")


def test_watch_steps_streams_past_and_new_reports(board: Board, stub: trainer_pb2_grpc.TrainerServiceStub) -> None:
    board.add_report(make_report(0))
    board.add_report(make_report(1, held_out_accuracy=0.75))
    stream = stub.WatchSteps(trainer_pb2.WatchStepsRequest(first_step=1), timeout=10)
    first = next(stream).report
    board.add_report(make_report(2))
    second = next(stream).report
    assert (first.step, first.held_out_accuracy, second.step) == (1, 0.75, 2)
    assert dict(second.num_samples_left_out) == {"overlong": 3}
    assert not second.HasField("held_out_accuracy")
    assert (second.policy_loss, second.logprob_mismatch_max, second.queue_depth) == (0.25, 0.5, 3)
    assert (second.importance_cut_fraction, second.rejected_token_fraction) == (0.125, 0.375)
    assert (second.sequence_masked_fraction, second.kl) == (0.625, 0.75)
    assert (second.sync_seconds, second.pause_seconds, second.is_committed) == (0.5, 0.125, True)
    stream.cancel()


def test_the_stream_of_steps_ends_with_the_service(board: Board, stub: trainer_pb2_grpc.TrainerServiceStub) -> None:
    board.add_report(make_report(0))
    stream = stub.WatchSteps(trainer_pb2.WatchStepsRequest(), timeout=10)
    assert next(stream).report.step == 0
    board.close()
    assert list(stream) == []


def test_a_watcher_that_leaves_frees_its_thread(board: Board, stub: trainer_pb2_grpc.TrainerServiceStub) -> None:
    # More watchers than the server has threads: the last call would wait for ever if they kept them.
    for _ in range(40):
        stub.WatchSteps(trainer_pb2.WatchStepsRequest(), timeout=10).cancel()
    assert stub.GetStatus(trainer_pb2.GetStatusRequest(), timeout=10).phase == trainer_pb2.PHASE_STARTING


def test_save_checkpoint_returns_when_it_is_saved(board: Board, stub: trainer_pb2_grpc.TrainerServiceStub) -> None:
    board.status.version = PolicyVersion(run_id="r", step=6)
    saver = threading.Timer(0.1, lambda: board.checkpoint_saved("/run/checkpoints/step-00000006"))
    saver.start()
    reply = stub.SaveCheckpoint(trainer_pb2.SaveCheckpointRequest(request_id="c"), timeout=5)
    assert (reply.path, reply.step) == ("/run/checkpoints/step-00000006", 6)


def test_a_checkpoint_that_never_comes_ends_at_the_callers_deadline(stub: trainer_pb2_grpc.TrainerServiceStub) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        stub.SaveCheckpoint(trainer_pb2.SaveCheckpointRequest(), timeout=0.2)
    assert caught.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED


def test_get_status_tells_phase_version_and_failure(board: Board, stub: trainer_pb2_grpc.TrainerServiceStub) -> None:
    board.status.phase = Phase.FAILED
    board.status.last_error = "round 3 has 1 accepted"
    board.status.num_versions_aborted = 2
    reply = stub.GetStatus(trainer_pb2.GetStatusRequest(), timeout=5)
    assert (reply.phase, reply.last_error) == (trainer_pb2.PHASE_FAILED, "round 3 has 1 accepted")
    assert reply.num_versions_aborted == 2
    assert not reply.HasField("version")
