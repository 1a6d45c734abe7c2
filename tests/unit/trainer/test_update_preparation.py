"""What is fixed before the first update: over the whole update, and over the whole round."""

import math
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest
import torch

from services.common.config.algorithm import (
    DapoConfig,
    GrpoConfig,
    ImportanceConfig,
    KlConfig,
    ReinforcePlusPlusConfig,
    RejectionConfig,
)
from services.trainer.packing import TrainingSequence, pack
from services.trainer.policy import TokenStatistics
from services.trainer.update_preparation import UpdatePreparation


class RanksTogether:
    """Sums of ranks that run as threads, in the order of their calls."""

    def __init__(self, num_ranks):
        self._barrier = Barrier(num_ranks)
        self._given = [{} for _ in range(num_ranks)]

    def sum(self, rank, values):
        self._given[rank] = values
        self._barrier.wait(5)
        total = {name: sum(given[name] for given in self._given) for name in values}
        self._barrier.wait(5)
        return total


class ShiftedPolicy:
    """Its log-probabilities are the engine's plus the advantage's logarithm: the ratio is the advantage."""

    def __init__(self, ranks=None, rank=0):
        self._ranks, self._rank = ranks, rank

    def statistics(self, batches):
        shifted = [batch.engine_logprobs + batch.advantages.clamp(min=1e-9).log() for batch in batches]
        return [TokenStatistics(logprobs=values, entropies=torch.zeros_like(values)) for values in shifted]

    def reference_logprobs(self, batches):
        return [statistics.logprobs - 0.5 for statistics in self.statistics(batches)]

    def sum_over_ranks(self, values):
        return self._ranks.sum(self._rank, values) if self._ranks else dict(values)


def _batch(*samples):
    """Samples of (ratio, response tokens); the ratio is the advantage, too."""
    sequences = [
        TrainingSequence(
            prompt_token_ids=(1,), response_token_ids=(2,) * num, engine_logprobs=(-1.0,) * num, advantage=ratio
        )
        for ratio, num in samples
    ]
    return pack(sequences, range(len(sequences)))


def _prepare(algorithm, updates, policy=None):
    return UpdatePreparation(policy or ShiftedPolicy(), algorithm, max_response_tokens=4).prepare(updates)


def _weights(update):
    return [value for item in update.batches for value in item.importance_weights[item.batch.loss_mask].tolist()]


def _advantages(update):
    return [value for item in update.batches for value in item.batch.advantages[item.batch.loss_mask].tolist()]


def test_weights_are_normalised_over_the_update_and_not_over_the_micro_batch():
    algorithm = DapoConfig(importance=ImportanceConfig(normalize=True))
    (update,) = _prepare(algorithm, [[_batch((0.5, 1)), _batch((1.0, 2), (9.0, 1))]])
    # weights 0.5 1 1 2 (cut), mean 4.5 / 4
    assert _weights(update) == pytest.approx([value / 1.125 for value in (0.5, 1.0, 1.0, 2.0)])


def test_two_updates_are_normalised_each_by_itself():
    algorithm = DapoConfig(importance=ImportanceConfig(normalize=True))
    first, second = _prepare(algorithm, [[_batch((0.5, 1), (1.5, 1))], [_batch((0.25, 1))]])
    assert _weights(first) == pytest.approx([0.5, 1.5])
    assert _weights(second) == pytest.approx([1.0])


def test_sequence_levels_are_normalised_over_sequences():
    algorithm = DapoConfig(importance=ImportanceConfig(level="geometric", normalize=True))
    (update,) = _prepare(algorithm, [[_batch((0.5, 3), (1.0, 1))]])
    # one weight a sequence, 0.5 and 1: mean 0.75, whatever their lengths
    assert _weights(update) == pytest.approx([0.5 / 0.75] * 3 + [1 / 0.75])


def test_all_weights_cut_to_zero_stay_zero():
    algorithm = DapoConfig(importance=ImportanceConfig(mode="mask", lower=0.5, normalize=True))
    (update,) = _prepare(algorithm, [[_batch((9.0, 2))]])
    assert _weights(update) == [0.0, 0.0]
    assert update.global_count == 2.0


def test_rejected_tokens_are_in_no_weight_mean_and_no_count():
    algorithm = GrpoConfig(
        importance=ImportanceConfig(normalize=True), rejection=RejectionConfig(level="token", lower=0.4, upper=2.0)
    )
    (update,) = _prepare(algorithm, [[_batch((0.5, 1), (9.0, 2), (1.5, 1))]])
    assert _weights(update) == pytest.approx([0.5, 1.5])
    # sequences left
    assert update.global_count == 2.0
    assert update.figures["num_samples_rejected/mismatch"] == 1.0
    assert (update.figures["num_tokens_rejected"], update.figures["num_tokens"]) == (2.0, 2.0)
    assert update.max_mismatch == pytest.approx(math.log(9.0))


def test_advantages_are_whitened_over_the_round():
    first, second = _prepare(ReinforcePlusPlusConfig(), [[_batch((1.0, 1))], [_batch((2.0, 2), (3.0, 1))]])
    # tokens 1 2 2 3: mean 2, unbiased variance 2/3
    scale = math.sqrt(2 / 3)
    assert _advantages(first) == pytest.approx([-1 / scale], rel=1e-6)
    assert _advantages(second) == pytest.approx([0.0, 0.0, 1 / scale], rel=1e-6, abs=1e-6)


def test_penalty_of_the_reference_lowers_the_advantages_of_its_token_and_those_before():
    algorithm = DapoConfig(kl=KlConfig(placement="reward", estimator="k1", coefficient=0.2))
    (update,) = _prepare(algorithm, [[_batch((1.0, 3))]])
    # k1 is 0.5 everywhere: 0.1 for each token from here on
    assert _advantages(update) == pytest.approx([0.7, 0.8, 0.9])


@pytest.mark.parametrize(
    "algorithm",
    [
        ReinforcePlusPlusConfig(),
        DapoConfig(importance=ImportanceConfig(normalize=True), rejection=RejectionConfig(level="token", lower=0.2)),
        GrpoConfig(importance=ImportanceConfig(level="sequence", normalize=True)),
    ],
    ids=["whiten", "token", "sequence"],
)
def test_two_ranks_prepare_what_one_would(algorithm):
    parts = [[_batch((0.5, 2), (0.1, 1))], [_batch((1.5, 1), (1.8, 3))]]
    (alone,) = _prepare(algorithm, [[*parts[0], *parts[1]]])
    ranks = RanksTogether(2)
    with ThreadPoolExecutor(2) as pool:
        jobs = [pool.submit(_prepare, algorithm, [parts[rank]], ShiftedPolicy(ranks, rank)) for rank in range(2)]
        together = [job.result()[0] for job in jobs]
    assert _weights(together[0]) + _weights(together[1]) == pytest.approx(_weights(alone))
    assert _advantages(together[0]) + _advantages(together[1]) == pytest.approx(_advantages(alone))
    assert together[0].figures == together[1].figures == alone.figures
    assert together[0].global_count == together[1].global_count == alone.global_count


def test_a_sum_over_tokens_is_divided_by_the_longest_response_or_the_recipes_constant():
    for divisor_tokens, weight in ((0, 0.25), (10, 0.1)):
        algorithm = DapoConfig(aggregation="sequence_sum", divisor_tokens=divisor_tokens)
        (update,) = _prepare(algorithm, [[_batch((1.0, 3), (1.0, 1))]])
        item = update.batches[0]
        assert item.aggregation_weights[item.batch.loss_mask].tolist() == pytest.approx([weight] * 4)
        assert update.global_count == 2.0
