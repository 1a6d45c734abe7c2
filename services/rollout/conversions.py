"""Pure maps between the rollout service's records and its messages."""

from furlong.rollout.v1 import rollout_pb2

from services.common.config.rollout import EvaluationConfig, SamplingConfig
from services.common.conversions import sample_to_proto, version_to_proto
from services.common.errors import InvalidInputError
from services.rollout.engine import SamplingParameters
from services.rollout.evaluation import EvaluationFigures
from services.rollout.scoring import ScoredResponse, sample_of


def sampling_from_proto(message: rollout_pb2.SamplingParameters) -> SamplingParameters:
    """The sampling parameters of a request.

    Raises:
        InvalidInputError: a value is outside its range.
    """
    top_p = message.top_p or 1.0
    if message.temperature < 0 or not 0 < top_p <= 1 or message.max_new_tokens < 1:
        raise InvalidInputError(
            f"sampling has temperature {message.temperature}, top_p {top_p}, max_new_tokens {message.max_new_tokens}; "
            "wanted temperature >= 0, 0 < top_p <= 1 and max_new_tokens >= 1"
        )
    return SamplingParameters(temperature=message.temperature, top_p=top_p, max_new_tokens=message.max_new_tokens)


def training_sampling(config: SamplingConfig) -> SamplingParameters:
    """The recipe's sampling for training."""
    return SamplingParameters(temperature=config.temperature, top_p=config.top_p, max_new_tokens=config.max_new_tokens)


def evaluation_sampling(sampling: SamplingConfig, evaluation: EvaluationConfig) -> SamplingParameters:
    """The recipe's sampling for evaluation."""
    return SamplingParameters(
        temperature=evaluation.temperature, top_p=sampling.top_p, max_new_tokens=sampling.max_new_tokens
    )


def figures_to_proto(figures: EvaluationFigures) -> rollout_pb2.EvaluateResponse:
    """The reply of an evaluation."""
    return rollout_pb2.EvaluateResponse(
        version=version_to_proto(figures.version),
        num_prompts=figures.num_prompts,
        mean_reward=figures.mean_reward,
        thinking_rate=figures.thinking_rate,
        truncation_rate=figures.truncation_rate,
        mean_response_tokens=figures.mean_response_tokens,
        accept_length=figures.accept_length,
        examples=[
            rollout_pb2.ExampleReply(prompt=e.prompt, response=e.response, label=e.label, reward=e.reward)
            for e in figures.examples
        ],
    )


def generated_to_proto(scored: ScoredResponse, *, group_id: str, index: int) -> rollout_pb2.GeneratedResponse:
    """One response of Generate."""
    return rollout_pb2.GeneratedResponse(
        sample=sample_to_proto(sample_of(scored, group_id=group_id, index=index)), text=scored.text
    )
