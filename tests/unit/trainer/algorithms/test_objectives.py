"""Whole objectives, from rewards to the aggregate and its gradient, against loops over the papers' formulas."""

import math
import statistics

import pytest
import torch

from services.common.config.algorithm import (
    AlgorithmConfig,
    CispoConfig,
    DapoConfig,
    DrGrpoConfig,
    GrpoConfig,
    GspoConfig,
    ImportanceConfig,
    ReinforcePlusPlusBaselineConfig,
    ReinforcePlusPlusConfig,
    RlooConfig,
)
from services.trainer.algorithm_choice import sample_advantages
from services.trainer.loss_assembly import make_policy_loss
from services.trainer.packing import TrainingSequence, pack
from services.trainer.update_preparation import UpdatePreparation
from tests.unit.trainer.scripted_policy import ScriptedPolicy

OFF = ImportanceConfig(mode="off")
OLD_WEIGHT, WEIGHT = 0.05, 0.09
MAX_RESPONSE_TOKENS = 8
# group: rewards and response lengths of its samples
GROUPS = [([1.0, 0.0, 0.0], [3, 5, 2]), ([0.5, 1.0, 0.0], [1, 6, 4])]
VOCABULARY = 9


def _samples() -> list[tuple[float, list[int]]]:
    """(reward, response) of each sample, group after group."""
    samples = []
    for group, (rewards, lengths) in enumerate(GROUPS):
        for index, (reward, length) in enumerate(zip(rewards, lengths, strict=True)):
            samples.append((reward, [(3 * group + 2 * index + 5 * place) % VOCABULARY for place in range(length)]))
    return samples


def _logprob(weight: float, token: int, position: int) -> float:
    """As the scripted policy has it; the prompt is one token, so the response begins at position 0's label."""
    return -0.3 - weight * (token + 0.1 * position)


def _baselines(kind: str) -> list[float]:
    """Advantages of the samples."""
    advantages = []
    for rewards, _ in GROUPS:
        for index, reward in enumerate(rewards):
            others = rewards[:index] + rewards[index + 1 :]
            advantages.append(
                {
                    "normalised": (reward - statistics.fmean(rewards)) / (statistics.stdev(rewards) + 1e-6),
                    "centred": reward - statistics.fmean(rewards),
                    "leave one out": reward - statistics.fmean(others),
                    "plain": reward,
                }[kind]
            )
    return advantages


def _whiten(advantages: list[float]) -> list[float]:
    tokens = [a for a, (_, response) in zip(advantages, _samples(), strict=True) for _ in response]
    mean, variance = statistics.fmean(tokens), statistics.variance(tokens)
    return [(a - mean) / math.sqrt(variance + 1e-8) for a in advantages]


def _objective(
    weight: float, kind: str, *, whiten: bool, low: float, high: float, ratio: str, aggregation: str
) -> float:
    """To minimise, at a weight of the policy."""
    advantages = _whiten(_baselines(kind)) if whiten else _baselines(kind)
    rows = []
    for advantage, (_, response) in zip(advantages, _samples(), strict=True):
        logs = [_logprob(weight, t, p) - _logprob(OLD_WEIGHT, t, p) for p, t in enumerate(response)]
        if ratio == "sequence":
            logs = [statistics.fmean(logs)] * len(logs)
        rows.append([max(-math.exp(x) * advantage, -_clip(math.exp(x), low, high) * advantage) for x in logs])
    if aggregation == "token_mean":
        return sum(map(sum, rows)) / sum(map(len, rows))
    if aggregation == "sequence_mean":
        return statistics.fmean(statistics.fmean(row) for row in rows)
    return statistics.fmean(sum(row) / MAX_RESPONSE_TOKENS for row in rows)


def _clip(ratio: float, low: float, high: float) -> float:
    return min(max(ratio, 1 - low), 1 + high)


def _ours(algorithm: AlgorithmConfig) -> tuple[float, float]:
    """Value and gradient by the weight, in two micro-batches."""
    samples = _samples()
    advantages = sample_advantages(
        algorithm,
        torch.tensor([reward for reward, _ in samples], dtype=torch.float64),
        group_sizes=[len(rewards) for rewards, _ in GROUPS],
    )
    sequences = [
        TrainingSequence(
            prompt_token_ids=(1,),
            response_token_ids=tuple(response),
            engine_logprobs=(-1.0,) * len(response),
            advantage=advantage,
        )
        for advantage, (_, response) in zip(advantages.tolist(), samples, strict=True)
    ]
    preparation = UpdatePreparation(ScriptedPolicy(OLD_WEIGHT), algorithm, max_response_tokens=MAX_RESPONSE_TOKENS)
    (update,) = preparation.prepare([[pack(sequences, [0, 3, 5]), pack(sequences, [1, 2, 4])]])
    policy, loss = ScriptedPolicy(WEIGHT), make_policy_loss(algorithm, update.batches)
    total = sum(
        loss(policy.statistics_of(item.batch), item.batch, index).loss_sum / update.global_count
        for index, item in enumerate(update.batches)
    )
    assert isinstance(total, torch.Tensor)
    total.backward()
    assert policy.weight.grad is not None
    return total.item(), policy.weight.grad.item()


CASES = {
    "grpo": (GrpoConfig(importance=OFF), "normalised", False, 0.2, 0.2, "token", "sequence_mean"),
    "dapo": (DapoConfig(importance=OFF), "normalised", False, 0.2, 0.28, "token", "token_mean"),
    "dr_grpo": (DrGrpoConfig(importance=OFF), "centred", False, 0.2, 0.2, "token", "sequence_sum"),
    "rloo": (RlooConfig(importance=OFF), "leave one out", False, 0.2, 0.2, "token", "sequence_sum"),
    "reinforce_plus_plus": (ReinforcePlusPlusConfig(importance=OFF), "plain", True, 0.2, 0.2, "token", "token_mean"),
    "reinforce_plus_plus_baseline": (
        ReinforcePlusPlusBaselineConfig(importance=OFF),
        *("centred", True, 0.2, 0.2, "token", "token_mean"),
    ),
    "gspo": (
        GspoConfig(importance=OFF, clip_low=0.1, clip_high=0.12),
        *("normalised", False, 0.1, 0.12, "sequence", "sequence_mean"),
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_value_and_gradient_are_those_of_the_formula(case):
    algorithm, kind, whiten, low, high, ratio, aggregation = case

    def objective(weight: float) -> float:
        return _objective(weight, kind, whiten=whiten, low=low, high=high, ratio=ratio, aggregation=aggregation)

    value, gradient = _ours(algorithm)
    step = 1e-6
    slope = (objective(WEIGHT + step) - objective(WEIGHT - step)) / (2 * step)
    assert value == pytest.approx(objective(WEIGHT), rel=1e-5, abs=1e-7)
    assert gradient == pytest.approx(slope, rel=1e-4)


def test_cispos_gradient_is_that_of_weighted_log_probabilities():
    algorithm = CispoConfig(importance=OFF, clip_high=0.0001)
    expected, num_tokens = 0.0, 0
    for advantage, (_, response) in zip(_baselines("normalised"), _samples(), strict=True):
        for position, token in enumerate(response):
            ratio = math.exp(_logprob(WEIGHT, token, position) - _logprob(OLD_WEIGHT, token, position))
            # d log p / d weight
            slope = -(token + 0.1 * position)
            expected -= min(ratio, 1.0001) * advantage * slope
            num_tokens += 1
    assert _ours(algorithm)[1] == pytest.approx(expected / num_tokens, rel=1e-4)
