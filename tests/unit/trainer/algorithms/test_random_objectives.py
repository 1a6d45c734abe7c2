"""Objectives put together from the algorithms alone, on random rounds, against loops over the papers' formulas.

A round has groups with a failed sample, responses of no token, masked tokens that hold NaN, and two micro-batches.
Gradients of the loops are central differences of their value.
"""

import math
import random
import statistics
from dataclasses import dataclass, replace

import pytest
import torch

from services.trainer.algorithms.advantages import group_centred, leave_one_out, plain_rewards
from services.trainer.algorithms.aggregation import aggregation_count, aggregation_weights
from services.trainer.algorithms.importance import level_ratios, normalized, truncated, weight_sums
from services.trainer.algorithms.kl import kl_estimate, weighted_estimate
from services.trainer.algorithms.policy_loss import PolicyLossInputs, clipped_surrogate, sequence_surrogate
from services.trainer.algorithms.returns import moments, rewards_to_go, whitened
from tests.unit.trainer.algorithms.packed import sequences, tensor

LOW, HIGH, DIVISOR, KL, CAP = 0.15, 0.25, 16.0, 0.1, 1.1


@dataclass(frozen=True)
class Token:
    new: float
    old: float
    engine: float
    reference: float
    counts: bool


@dataclass(frozen=True)
class Round:
    groups: list[list[float]]
    """Rewards."""
    samples: list[list[Token]]
    """Group after group."""


def _round(seed):
    source = random.Random(seed)

    def token(counts):
        old = -source.uniform(0.1, 2)
        near = [old + source.gauss(0, 0.25) for _ in range(3)]
        return Token(near[0], old, near[1], near[2], counts) if counts else Token(*[math.nan] * 4, counts)

    groups = [[source.random() for _ in range(size)] for size in (3, 4, 2)]
    groups[1][2] = math.nan
    lengths = [source.choice([0, 1, 3, 5]) for group in groups for _ in group]
    return Round(groups, [[token(source.random() < 0.75) for _ in range(length)] for length in lengths])


def _slow_advantages(kind, groups):
    for group in groups:
        fine = [reward for reward in group if math.isfinite(reward)]
        for reward in group:
            if not math.isfinite(reward):
                yield 0.0
            elif kind == "plain":
                yield reward
            elif kind == "leave one out":
                yield reward - (sum(fine) - reward) / (len(fine) - 1)
            else:
                centred = reward - statistics.fmean(fine)
                yield centred / (statistics.stdev(fine) + 1e-6) if kind == "normalised" else centred


def _slow_surrogate(ratio, advantage):
    return -min(ratio * advantage, min(max(ratio, 1 - LOW), 1 + HIGH) * advantage)


def _slow_aggregate(aggregation, rows):
    """Of the losses of counted tokens, [sample][token]."""
    rows = [row for row in rows if row]
    if aggregation == "token_mean":
        return sum(map(sum, rows)) / sum(map(len, rows))
    return statistics.fmean(sum(row) / (len(row) if aggregation == "sequence_mean" else DIVISOR) for row in rows)


def _slopes(objective, rows):
    """Central differences by every log-probability."""
    step = 1e-6

    def moved(sample, place, by):
        return [[value + by * ((i, j) == (sample, place)) for j, value in enumerate(row)] for i, row in enumerate(rows)]

    places = [(i, j) for i, row in enumerate(rows) for j in range(len(row))]
    return [(objective(moved(*place, step)) - objective(moved(*place, -step))) / (2 * step) for place in places]


class Packed:
    """The round as tensors, in micro-batches of alternating samples."""

    def __init__(self, data, advantages):
        self.members = [list(range(0, len(data.samples), 2)), list(range(1, len(data.samples), 2))]
        self.inputs, self.engine, self.reference = [], [], []
        for members in self.members:
            rows = [data.samples[index] for index in members]
            tokens = [token for row in rows for token in row]
            per_token = [advantages[index] for index in members for _ in data.samples[index]]
            self.inputs.append(
                PolicyLossInputs(
                    logprobs=tensor([token.new for token in tokens]).requires_grad_(),
                    old_logprobs=tensor([token.old for token in tokens]),
                    advantages=tensor(per_token),
                    mask=torch.tensor([token.counts for token in tokens], dtype=torch.bool),
                    sequences=sequences(*map(len, rows)),
                )
            )
            self.engine.append(tensor([token.engine for token in tokens]))
            self.reference.append(tensor([token.reference for token in tokens]))

    def aggregate(self, aggregation, losses):
        """(value, gradient by counted log-probability in the order of the samples)."""
        total, count = torch.zeros((), dtype=torch.float64), 0
        for inputs, loss in zip(self.inputs, losses, strict=True):
            weights = aggregation_weights(aggregation, inputs.mask, inputs.sequences, divisor_tokens=DIVISOR)
            total = total + (loss * weights).sum()
            count += aggregation_count(aggregation, inputs.mask, inputs.sequences)
        (total / count).backward()
        return (total / count).item(), self._in_order()

    def _in_order(self):
        rows = {}
        for members, inputs in zip(self.members, self.inputs, strict=True):
            assert inputs.logprobs.grad[~inputs.mask].tolist() == [0.0] * int((~inputs.mask).sum())
            offsets = inputs.sequences.cu_seqlens.tolist()
            for position, index in enumerate(members):
                span = slice(offsets[position], offsets[position + 1])
                rows[index] = inputs.logprobs.grad[span][inputs.mask[span]].tolist()
        return [value for index in sorted(rows) for value in rows[index]]


def _counted(data):
    return [[token for token in row if token.counts] for row in data.samples]


# advantage, aggregation, level of the ratio
CASES = {
    "grpo": ("normalised", "sequence_mean", "token"),
    "dapo": ("normalised", "token_mean", "token"),
    "dr_grpo": ("centred", "sequence_sum", "token"),
    "rloo": ("leave one out", "sequence_sum", "token"),
    "gspo": ("normalised", "sequence_mean", "sequence"),
}
ESTIMATORS = {
    "normalised": lambda rewards, sizes: group_centred(rewards, group_sizes=sizes, normalize_std=True),
    "centred": lambda rewards, sizes: group_centred(rewards, group_sizes=sizes, normalize_std=False),
    "leave one out": lambda rewards, sizes: leave_one_out(rewards, group_sizes=sizes),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
@pytest.mark.parametrize("seed", range(4))
def test_with_a_weighted_divergence_and_normalised_importance_weights(case, seed):
    kind, aggregation, level = case
    data = _round(seed)
    rows, advantages = _counted(data), list(_slow_advantages(kind, data.groups))
    caps = [[min(math.exp(token.old - token.engine), CAP) for token in row] for row in rows]
    mean = statistics.fmean(cap for row in caps for cap in row)

    def objective(logprobs):
        losses = []
        for row, new, weights, advantage in zip(rows, logprobs, caps, advantages, strict=True):
            logs = [value - token.old for value, token in zip(new, row, strict=True)]
            ratios = [math.exp(statistics.fmean(logs) if level == "sequence" else log) for log in logs]
            away = [token.reference - value for value, token in zip(new, row, strict=True)]
            penalties = [math.exp(log) * (math.exp(d) - d - 1) for log, d in zip(logs, away, strict=True)]
            losses.append(
                [
                    weight / mean * _slow_surrogate(ratio, advantage) + KL * penalty
                    for weight, ratio, penalty in zip(weights, ratios, penalties, strict=True)
                ]
            )
        return _slow_aggregate(aggregation, losses)

    everything = tensor([reward for group in data.groups for reward in group])
    packed = Packed(data, ESTIMATORS[kind](everything, [len(group) for group in data.groups]).tolist())
    weights, sums = [], []
    for inputs, engine in zip(packed.inputs, packed.engine, strict=True):
        ratios = level_ratios("token", inputs.old_logprobs, engine, inputs.mask, inputs.sequences)
        weights.append(truncated(ratios, inputs.mask, upper=CAP).weights)
        sums.append(weight_sums("token", weights[-1], inputs.mask, inputs.sequences))
    total_mean = sum(total for total, _ in sums) / sum(count for _, count in sums)
    loss = sequence_surrogate if level == "sequence" else clipped_surrogate
    losses = []
    for inputs, weight, reference in zip(packed.inputs, weights, packed.reference, strict=True):
        estimate = kl_estimate("k3", inputs.logprobs, reference, inputs.mask)
        penalty = weighted_estimate(estimate, inputs.logprobs, inputs.old_logprobs, inputs.mask)
        surrogate = loss(inputs, clip_low=LOW, clip_high=HIGH).losses
        losses.append(surrogate * normalized(weight, mean=total_mean) + KL * penalty)
    value, gradient = packed.aggregate(aggregation, losses)
    now = [[token.new for token in row] for row in rows]
    # weights of the aggregation are single precision
    assert value == pytest.approx(objective(now), rel=1e-6, abs=1e-8)
    assert gradient == pytest.approx(_slopes(objective, now), rel=1e-5, abs=1e-8)


@pytest.mark.parametrize("discount", [1.0, 0.9])
@pytest.mark.parametrize("seed", range(4))
def test_reinforce_plus_plus_with_the_divergence_in_the_reward(discount, seed):
    """arXiv 2501.03262: returns of token rewards, whitened over all tokens of the round, in the clipped surrogate."""
    data = _round(seed)
    advantages = []
    for reward, row in zip(_slow_advantages("plain", data.groups), data.samples, strict=True):
        places = [place for place, token in enumerate(row) if token.counts]
        running, returns = 0.0, []
        for place in reversed(range(len(row))):
            running *= discount
            if row[place].counts:
                running += (reward if place == places[-1] else 0.0) - KL * (row[place].old - row[place].reference)
                returns.insert(0, running)
        advantages.append(returns)
    flat = [value for row in advantages for value in row]
    mean, deviation = statistics.fmean(flat), math.sqrt(statistics.variance(flat) + 1e-8)

    def objective(logprobs):
        return statistics.fmean(
            _slow_surrogate(math.exp(value - token.old), (advantage - mean) / deviation)
            for new, row, returns in zip(logprobs, _counted(data), advantages, strict=True)
            for value, token, advantage in zip(new, row, returns, strict=True)
        )

    packed = Packed(data, plain_rewards(tensor([reward for group in data.groups for reward in group])).tolist())
    returns = []
    for inputs, reference in zip(packed.inputs, packed.reference, strict=True):
        penalties = KL * kl_estimate("k1", inputs.old_logprobs, reference, inputs.mask)
        returns.append(rewards_to_go(inputs.advantages, penalties, inputs.mask, inputs.sequences, discount=discount))
    whole = moments(returns, [inputs.mask for inputs in packed.inputs])
    losses = []
    for inputs, values in zip(packed.inputs, returns, strict=True):
        final = replace(inputs, advantages=whitened(values, inputs.mask, whole))
        losses.append(clipped_surrogate(final, clip_low=LOW, clip_high=HIGH).losses)
    value, gradient = packed.aggregate("token_mean", losses)
    now = [[token.new for token in row] for row in _counted(data)]
    assert value == pytest.approx(objective(now), rel=1e-6, abs=1e-8)
    assert gradient == pytest.approx(_slopes(objective, now), rel=1e-5, abs=1e-7)
