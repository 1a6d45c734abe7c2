"""Typed clients of the trainer and the rollout service, as the command needs them."""

from collections.abc import Iterator

import grpc
from furlong.rollout.v1 import rollout_pb2, rollout_pb2_grpc
from furlong.trainer.v1 import trainer_pb2, trainer_pb2_grpc

from services.cli.conversions import (
    evaluation_from_proto,
    rollout_status_from_proto,
    step_report_from_proto,
    trainer_status_from_proto,
)
from services.cli.records import Evaluation, RolloutStatus, StepReport, TrainerStatus
from services.common.channels import call, error_of_rpc, open_channel, wait_for_health
from services.common.errors import UnavailableError
from services.common.security import Credentials

_SHORT_SECONDS = 10.0


class TrainerClient:
    """The trainer's rank 0."""

    def __init__(self, address: str, credentials: Credentials) -> None:
        self._channel = open_channel(address, credentials)
        self._stub = trainer_pb2_grpc.TrainerServiceStub(self._channel)

    def status(self) -> TrainerStatus | None:
        """What it is doing; None while nothing answers at its address."""
        try:
            reply = call(
                lambda: self._stub.GetStatus(trainer_pb2.GetStatusRequest(), timeout=_SHORT_SECONDS),
                peer="trainer",
            )
        except UnavailableError:
            return None
        return trainer_status_from_proto(reply)

    def train(self, *, target_step: int) -> None:
        """Moves the goal of the loop."""
        request = trainer_pb2.TrainRequest(target_step=target_step)
        call(lambda: self._stub.Train(request, timeout=_SHORT_SECONDS), peer="trainer")

    def watch_steps(self, *, first_step: int) -> Iterator[StepReport]:
        """The report of every step from first_step on, each as its step ends, until the trainer stops."""
        request = trainer_pb2.WatchStepsRequest(first_step=first_step)
        try:
            # No deadline: a run lasts as long as it lasts, and a dead trainer ends the stream.
            for message in self._stub.WatchSteps(request):
                yield step_report_from_proto(message.report)
        except grpc.RpcError as error:
            raise error_of_rpc(error, peer="trainer") from error

    def close(self) -> None:
        """Ends the channel and the calls on it."""
        self._channel.close()


class RolloutClient:
    """One rollout service."""

    def __init__(self, address: str, credentials: Credentials, *, name: str) -> None:
        self._channel = open_channel(address, credentials)
        self._stub = rollout_pb2_grpc.RolloutServiceStub(self._channel)
        self._name = name

    def status(self) -> RolloutStatus:
        """Its counts."""
        reply = call(
            lambda: self._stub.GetStatus(rollout_pb2.GetStatusRequest(), timeout=_SHORT_SECONDS),
            peer=self._name,
        )
        return rollout_status_from_proto(reply)

    def start_generation(self) -> None:
        """Lets it fill the queue from now on."""
        request = rollout_pb2.StartGenerationRequest()
        call(lambda: self._stub.StartGeneration(request, timeout=_SHORT_SECONDS), peer=self._name)

    def evaluate(self, *, num_prompts: int, num_examples: int, timeout_seconds: float) -> Evaluation:
        """Figures over held-out prompts at the recipe's evaluation sampling.

        Args:
            num_prompts: 0 takes all of them.
        """
        request = rollout_pb2.EvaluateRequest(num_prompts=num_prompts, num_examples=num_examples)
        reply = call(lambda: self._stub.Evaluate(request, timeout=timeout_seconds), peer=self._name)
        return evaluation_from_proto(reply)

    def close(self) -> None:
        """Ends the channel and the calls on it."""
        self._channel.close()


def wait_until_serving(address: str, credentials: Credentials, *, name: str, timeout_seconds: float) -> None:
    """Returns when the service at the address reports SERVING.

    Raises:
        DeadlineError: it did not in time.
    """
    channel = open_channel(address, credentials)
    try:
        wait_for_health(channel, peer=name, timeout_seconds=timeout_seconds)
    finally:
        channel.close()
