"""The four services in process, behind a fake placement: real gRPC, a real queue server, no engine and no Megatron."""

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
from furlong.common.v1 import sample_pb2
from furlong.rollout.v1 import rollout_pb2, rollout_pb2_grpc
from furlong.trainer.v1 import trainer_pb2, trainer_pb2_grpc
from prometheus_client import CollectorRegistry

from services.cli.placement.fake_placement import FakePlacement
from services.cli.placement.placement import ProcessSpec
from services.cli.queue_server import serve
from services.common.deployment import Deployment, read_deployment
from services.common.security import NO_CREDENTIALS
from services.common.server import ServedService, Server
from services.common.telemetry import CallMetrics

SAMPLES_PER_STEP = 256


class FakeTrainer(trainer_pb2_grpc.TrainerServiceServicer):
    """Warm-starts in three looks, then makes a step as soon as it is asked to."""

    def __init__(self, *, first_step: int, mean_reward: float, hangs_at: int | None, has_failed: bool) -> None:
        self.target_steps: list[int] = []
        self._first_step = first_step
        self._mean_reward = mean_reward
        self._hangs_at = hangs_at
        self._has_failed = has_failed
        self._looks = 0
        self._target = threading.Event()

    def GetStatus(
        self, request: trainer_pb2.GetStatusRequest, context: grpc.ServicerContext
    ) -> trainer_pb2.GetStatusResponse:
        self._looks += 1
        if self._looks <= 3:
            return trainer_pb2.GetStatusResponse(
                phase=trainer_pb2.PHASE_WARM_START, warm_start_step=self._looks, num_warm_start_steps=3
            )
        if self._has_failed and self._target.is_set():
            return trainer_pb2.GetStatusResponse(
                phase=trainer_pb2.PHASE_FAILED, last_error="round 1 did not arrive within 600 s"
            )
        return trainer_pb2.GetStatusResponse(
            phase=trainer_pb2.PHASE_WAITING,
            version=sample_pb2.PolicyVersion(run_id="r", step=self._first_step),
            warm_start_seconds=1.5,
        )

    def Train(self, request: trainer_pb2.TrainRequest, context: grpc.ServicerContext) -> trainer_pb2.TrainResponse:
        self.target_steps.append(request.target_step)
        self._target.set()
        return trainer_pb2.TrainResponse(target_step=request.target_step)

    def WatchSteps(
        self, request: trainer_pb2.WatchStepsRequest, context: grpc.ServicerContext
    ) -> Iterator[trainer_pb2.WatchStepsResponse]:
        assert self._target.wait(10)
        for step in range(request.first_step, self.target_steps[-1]):
            if step == self._hangs_at:
                while context.is_active():
                    time.sleep(0.05)
                return
            yield trainer_pb2.WatchStepsResponse(report=self._report(step))

    def _report(self, step: int) -> trainer_pb2.StepReport:
        return trainer_pb2.StepReport(
            step=step,
            mean_reward=self._mean_reward,
            num_groups=SAMPLES_PER_STEP // 8,
            num_samples=SAMPLES_PER_STEP,
            num_response_tokens=2000,
            accept_length=1.5 + 0.1 * step,
            train_seconds=1.0,
            sync_seconds=0.25,
            is_committed=True,
            are_digests_equal=True,
        )


class FakeRollout(rollout_pb2_grpc.RolloutServiceServicer):
    """Evaluates to the given accuracies, one after the other."""

    def __init__(self, *, accuracies: list[float], num_steps: int) -> None:
        self.num_prompts_asked: list[int] = []
        self._accuracies = accuracies
        self._num_steps = num_steps

    def Evaluate(
        self, request: rollout_pb2.EvaluateRequest, context: grpc.ServicerContext
    ) -> rollout_pb2.EvaluateResponse:
        self.num_prompts_asked.append(request.num_prompts)
        example = rollout_pb2.ExampleReply(prompt="47+85", response="\\boxed{132}", label="132", reward=1.0)
        return rollout_pb2.EvaluateResponse(
            version=sample_pb2.PolicyVersion(run_id="r", step=3 if self._accuracies == [] else 0),
            num_prompts=2009,
            mean_reward=self._accuracies.pop(0),
            thinking_rate=0.5,
            examples=[example] * request.num_examples,
        )

    def StartGeneration(
        self, request: rollout_pb2.StartGenerationRequest, context: grpc.ServicerContext
    ) -> rollout_pb2.StartGenerationResponse:
        return rollout_pb2.StartGenerationResponse()

    def GetStatus(
        self, request: rollout_pb2.GetStatusRequest, context: grpc.ServicerContext
    ) -> rollout_pb2.GetStatusResponse:
        return rollout_pb2.GetStatusResponse(
            num_groups_pushed=self._num_steps * SAMPLES_PER_STEP // 8,
            num_samples_generated=self._num_steps * SAMPLES_PER_STEP,
            num_tokens_generated=6000,
            generation_seconds=3.0,
        )


class FakeCluster:
    """Starts the stand-in of whatever the placement is asked to start."""

    def __init__(
        self,
        *,
        accuracies: list[float],
        num_steps: int,
        first_step: int = 0,
        mean_reward: float = 0.5,
        trainer_hangs_at: int | None = None,
        has_failed: bool = False,
    ) -> None:
        self.trainer = FakeTrainer(
            first_step=first_step, mean_reward=mean_reward, hangs_at=trainer_hangs_at, has_failed=has_failed
        )
        self.rollout = FakeRollout(accuracies=accuracies, num_steps=num_steps)
        self.placement = FakePlacement(self._start)
        self._servers: list[Server] = []
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []

    def close(self) -> None:
        """Ends all stand-ins."""
        for server in self._servers:
            server.stop(grace_seconds=0)
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _start(self, spec: ProcessSpec) -> None:
        if spec.name == "valkey":
            folder, url_path = (Path(word) for word in spec.command[-2:])
            thread = threading.Thread(target=serve, args=(folder, url_path, self._stop))
            thread.start()
            self._threads.append(thread)
            return
        deployment = read_deployment(Path(spec.command[spec.command.index("--deployment") + 1]))
        address, services = self._service(spec.name, deployment)
        server = Server(
            services,
            address=address,
            credentials=NO_CREDENTIALS,
            metrics=CallMetrics(spec.name.partition("-")[0], CollectorRegistry()),
        )
        server.set_serving()
        self._servers.append(server)

    def _service(self, name: str, deployment: Deployment) -> tuple[str, list[ServedService]]:
        addresses = deployment.addresses
        if name.startswith("reward"):
            return addresses.reward[int(name.rpartition("-")[2])], []
        if name == "weights":
            return addresses.weights, []
        if name.startswith("trainer"):
            add: Callable[[grpc.Server], None] = lambda server: (  # noqa: E731
                trainer_pb2_grpc.add_TrainerServiceServicer_to_server(self.trainer, server)
            )
            return addresses.trainer, [ServedService(full_name="furlong.trainer.v1.TrainerService", add_to=add)]
        add = lambda server: rollout_pb2_grpc.add_RolloutServiceServicer_to_server(self.rollout, server)  # noqa: E731
        return addresses.rollout[0], [ServedService(full_name="furlong.rollout.v1.RolloutService", add_to=add)]
