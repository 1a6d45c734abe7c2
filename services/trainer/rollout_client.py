"""The rollout services as the trainer uses them: held-out evaluation."""

import grpc
from furlong.rollout.v1 import rollout_pb2, rollout_pb2_grpc

from services.common.channels import call, open_channel
from services.common.security import Credentials

_EVALUATE_SECONDS = 600.0


class EvaluationClient:
    """Evaluates on one rollout service."""

    def __init__(self, address: str, credentials: Credentials) -> None:
        self._channel: grpc.Channel = open_channel(address, credentials)
        self._stub = rollout_pb2_grpc.RolloutServiceStub(self._channel)

    def held_out_accuracy(self, *, num_prompts: int) -> float:
        """Mean reward over the first num_prompts held-out prompts.

        Raises:
            FurlongError: the service cannot be reached, or a version was committed meanwhile.
        """
        request = rollout_pb2.EvaluateRequest(num_prompts=num_prompts)
        reply = call(lambda: self._stub.Evaluate(request, timeout=_EVALUATE_SECONDS), peer="rollout")
        return reply.mean_reward

    def close(self) -> None:
        """Closes the channel."""
        self._channel.close()
