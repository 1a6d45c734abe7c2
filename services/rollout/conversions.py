"""Pure maps between the rollout service's records and its messages."""

import math

from furlong.rollout.v1 import rollout_pb2

from services.common.config.rollout import EvaluationConfig, RolloutConfig, SamplingConfig
from services.common.conversions import sample_to_proto, version_to_proto
from services.common.errors import InvalidInputError
from services.rollout.engine import SamplingParameters
from services.rollout.evaluation import EvaluationFigures, EvaluationPlan
from services.rollout.group_rules import GroupRules
from services.rollout.overlong import OverlongPenalty
from services.rollout.scoring import ScoredResponse, sample_of

MAX_SAMPLES = 1024
"""Most responses to one prompt in one call."""


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


def overlong_penalty(config: RolloutConfig) -> OverlongPenalty:
    """The recipe's penalty of long responses."""
    return OverlongPenalty(
        max_new_tokens=config.sampling.max_new_tokens,
        buffer_tokens=config.overlong.penalty_buffer_tokens,
        factor=config.overlong.penalty_factor,
    )


def group_rules(config: RolloutConfig) -> GroupRules:
    """The recipe's rules for dropping groups."""
    return GroupRules(drop_equal_rewards=config.drop_equal_rewards, filter_truncated=config.overlong.filter)


def evaluation_plan(sampling: SamplingConfig, evaluation: EvaluationConfig) -> EvaluationPlan:
    """The recipe's evaluation, of all held-out prompts and without examples."""
    return EvaluationPlan(
        num_prompts=0,
        samples_per_prompt=evaluation.samples_per_prompt,
        pass_threshold=evaluation.pass_threshold,
        sampling=SamplingParameters(
            temperature=evaluation.temperature, top_p=sampling.top_p, max_new_tokens=sampling.max_new_tokens
        ),
        num_examples=0,
    )


def evaluation_plan_from_proto(message: rollout_pb2.EvaluateRequest, *, default: EvaluationPlan) -> EvaluationPlan:
    """What a request asks for, with the default's values where it says nothing.

    Raises:
        InvalidInputError: a value is outside its range.
    """
    if message.num_prompts < 0 or message.num_examples < 0:
        raise InvalidInputError(
            f"num_prompts is {message.num_prompts} and num_examples {message.num_examples}; wanted 0 or more"
        )
    samples_per_prompt = message.samples_per_prompt or default.samples_per_prompt
    if not 1 <= samples_per_prompt <= MAX_SAMPLES:
        raise InvalidInputError(f"samples_per_prompt is {samples_per_prompt}, wanted 1 to {MAX_SAMPLES}")
    pass_threshold = message.pass_threshold if message.HasField("pass_threshold") else default.pass_threshold
    if not math.isfinite(pass_threshold):
        raise InvalidInputError(f"pass_threshold is {pass_threshold}, wanted a finite number")
    sampling = sampling_from_proto(message.sampling) if message.HasField("sampling") else default.sampling
    if sampling.temperature == 0 and samples_per_prompt > 1:
        raise InvalidInputError(
            f"samples_per_prompt is {samples_per_prompt} at temperature 0, where all responses are the same; ask for "
            "1 or raise the temperature"
        )
    return EvaluationPlan(
        num_prompts=message.num_prompts,
        samples_per_prompt=samples_per_prompt,
        pass_threshold=pass_threshold,
        sampling=sampling,
        num_examples=message.num_examples,
    )


def figures_to_proto(figures: EvaluationFigures) -> rollout_pb2.EvaluateResponse:
    """The reply of an evaluation."""
    return rollout_pb2.EvaluateResponse(
        version=version_to_proto(figures.version),
        num_prompts=figures.num_prompts,
        mean_reward=figures.mean_reward,
        thinking_rate=figures.thinking_rate,
        truncation_rate=figures.truncation_rate,
        mean_response_tokens=figures.lengths.mean,
        accept_length=figures.accept_length,
        examples=[
            rollout_pb2.ExampleReply(prompt=e.prompt, response=e.response, label=e.label, reward=e.reward)
            for e in figures.examples
        ],
        samples_per_prompt=figures.samples_per_prompt,
        pass_threshold=figures.pass_threshold,
        pass_rates=[rollout_pb2.PassRate(k=k, rate=rate) for k, rate in figures.pass_rates.items()],
        median_response_tokens=figures.lengths.median,
        p90_response_tokens=figures.lengths.p90,
        max_response_tokens=figures.lengths.max,
    )


def generated_to_proto(scored: ScoredResponse, *, group_id: str, index: int) -> rollout_pb2.GeneratedResponse:
    """One response of Generate."""
    return rollout_pb2.GeneratedResponse(
        sample=sample_to_proto(sample_of(scored, group_id=group_id, index=index)), text=scored.text
    )
