import math
import random

import pytest
import torch

from services.common.config.algorithm import (
    CispoConfig,
    DapoConfig,
    DrGrpoConfig,
    GrpoConfig,
    GspoConfig,
    GspoTokenConfig,
    ImportanceConfig,
    KlConfig,
    ReinforcePlusPlusBaselineConfig,
    ReinforcePlusPlusConfig,
    RejectionConfig,
    RlooConfig,
)
from services.trainer.loss_assembly import make_policy_loss, supervised_loss
from services.trainer.packing import TrainingSequence, pack
from services.trainer.policy import TokenStatistics
from services.trainer.update_preparation import UpdatePreparation
from tests.unit.trainer.scripted_policy import ScriptedPolicy

_MAX_RESPONSE_TOKENS = 8
_KITCHEN_SINK = {
    "entropy_coefficient": 0.01,
    "max_divergence": 0.01,
    "kl": KlConfig(placement="loss", estimator="k3", coefficient=0.1, unbiased=True),
    "importance": ImportanceConfig(mode="clip", level="geometric", lower=0.9, upper=1.1, normalize=True),
    "rejection": RejectionConfig(level="token", lower=0.4, upper=2.5, veto=0.2),
}
_ALGORITHMS = [
    GrpoConfig(),
    DapoConfig(),
    DapoConfig(importance=ImportanceConfig(mode="off")),
    DapoConfig(old_logprobs="engine", importance=ImportanceConfig(mode="off")),
    DapoConfig(dual_clip=1.5, **_KITCHEN_SINK),
    DrGrpoConfig(importance=ImportanceConfig(mode="mask", level="sequence", lower=0.5, normalize=True)),
    RlooConfig(kl=KlConfig(placement="reward", estimator="k1", coefficient=0.2), discount=0.9),
    ReinforcePlusPlusConfig(),
    ReinforcePlusPlusBaselineConfig(kl=KlConfig(placement="reward", estimator="k2")),
    GspoConfig(),
    GspoConfig(clip_low=0.3, clip_high=0.4, **_KITCHEN_SINK),
    GspoTokenConfig(clip_low=0.3, clip_high=0.4, discount=0.8),
    CispoConfig(clip_high=0.01),
]


def _sequences(num_sequences, *, seed=0):
    source = random.Random(seed)
    sequences = []
    for index in range(num_sequences):
        num_response = source.randrange(0, 6)
        sequences.append(
            TrainingSequence(
                prompt_token_ids=tuple(source.randrange(9) for _ in range(source.randrange(1, 4))),
                response_token_ids=tuple(source.randrange(9) for _ in range(num_response)),
                engine_logprobs=tuple(-source.random() for _ in range(num_response)),
                advantage=source.uniform(-1, 1) if index else 0.0,
            )
        )
    return sequences


def _prepare(algorithm, updates, *, weight=0.05):
    preparation = UpdatePreparation(ScriptedPolicy(weight), algorithm, max_response_tokens=_MAX_RESPONSE_TOKENS)
    return preparation.prepare(updates)


def _run(algorithm, sequences, parts):
    """Loss and gradient over the global count, and metric sums, of one update in micro-batches."""
    (update,) = _prepare(algorithm, [[pack(sequences, part) for part in parts]])
    loss_function, policy = make_policy_loss(algorithm, update.batches), ScriptedPolicy(0.06)
    results = [
        loss_function(policy.statistics_of(item.batch), item.batch, index) for index, item in enumerate(update.batches)
    ]
    for result in results:
        (result.loss_sum / update.global_count).backward()
    totals = {name: sum(r.metric_sums[name] for r in results) for name in results[0].metric_sums}
    loss = sum(r.loss_sum.item() for r in results) / update.global_count
    return loss, policy.weight.grad.item(), totals | dict(update.figures) | {"count": update.global_count}


@pytest.mark.parametrize("algorithm", _ALGORITHMS, ids=lambda a: a.type)
@pytest.mark.parametrize("num_parts", [2, 5, 12])
def test_loss_gradient_and_figures_do_not_depend_on_the_split_into_micro_batches(algorithm, num_parts):
    sequences = _sequences(12)
    whole = _run(algorithm, sequences, [list(range(12))])
    parts = _run(algorithm, sequences, [list(range(12))[start::num_parts] for start in range(num_parts)] + [[]])
    assert parts[0] == pytest.approx(whole[0], rel=1e-5)
    assert parts[1] == pytest.approx(whole[1], rel=1e-5)
    assert parts[2] == pytest.approx(whole[2], rel=1e-5)
    assert whole[1] != 0.0


def test_hand_case_of_token_ratios_with_importance_weights():
    sequences = [
        TrainingSequence(prompt_token_ids=(1,), response_token_ids=(2, 3), engine_logprobs=(-1.0, -0.5), advantage=2.0)
    ]
    batch = pack(sequences, [0])
    old = torch.tensor([-1.0 + math.log(0.5), -0.5 + math.log(3.0), 7.0])
    (update,) = _prepare_with(old, batch, DapoConfig())
    logprobs = old + torch.tensor([math.log(1.1), math.log(1.5), -9.0])
    statistics = TokenStatistics(logprobs=logprobs, entropies=torch.tensor([0.5, 0.25, 99.0]))
    result = make_policy_loss(DapoConfig(), update.batches)(statistics, update.batches[0].batch, 0)
    # token one: ratio 1.1, weight 0.5: -1.1 x 2 x 0.5; token two: ratio 1.5 clipped to 1.28, weight 3 cut to 2
    assert result.loss_sum.item() == pytest.approx(-1.1 - 5.12)
    assert result.metric_sums == pytest.approx({"policy_loss": -6.22, "clip_fraction": 1.0, "entropy": 0.75})
    assert update.figures == pytest.approx(
        {
            "num_tokens": 2.0,
            "num_tokens_rejected": 0.0,
            "importance_weight": 2.5,
            "importance_cut": 1.0,
            "logprob_mismatch": math.log(2.0) + math.log(3.0),
            "num_samples_rejected/undefined_logprobs": 0.0,
            "num_samples_rejected/veto": 0.0,
            "num_samples_rejected/mismatch": 0.0,
        }
    )
    assert update.max_mismatch == pytest.approx(math.log(3.0))
    assert update.global_count == 2.0


def test_hand_case_of_divergence_and_entropy_in_the_loss():
    algorithm = GrpoConfig(
        entropy_coefficient=0.5,
        kl=KlConfig(placement="loss", estimator="k2", coefficient=0.1),
        importance=ImportanceConfig(mode="mask", lower=0.5, upper=2.0),
    )
    sequences = [
        TrainingSequence(prompt_token_ids=(1,), response_token_ids=(2, 3), engine_logprobs=(-1.0, -4.0), advantage=3.0)
    ]
    batch = pack(sequences, [0])
    old = torch.tensor([-1.0, -1.0, 7.0])
    (update,) = _prepare_with(old, batch, algorithm, reference=torch.tensor([-1.2, -1.4, 0.0]))
    logprobs = torch.tensor([-1.0, -1.0, 0.0], requires_grad=True)
    entropies = torch.tensor([2.0, 1.0, 50.0], requires_grad=True)
    statistics = TokenStatistics(logprobs=logprobs, entropies=entropies)
    result = make_policy_loss(algorithm, update.batches)(statistics, update.batches[0].batch, 0)
    # Ratio 1 everywhere. The second token's weight exp(3) is out of bounds: 0. k2: 0.2^2 / 2 and 0.4^2 / 2.
    # Mean over the two tokens of one sequence: (-3 + 0.1 x 0.02 - 0.5 x 2) / 2 + (0 + 0.1 x 0.08 - 0.5 x 1) / 2
    assert result.loss_sum.item() == pytest.approx((-3 + 0.002 - 1) / 2 + (0.008 - 0.5) / 2)
    assert update.global_count == 1.0
    assert result.metric_sums["policy_loss"] == pytest.approx(-1.5)
    assert result.metric_sums["kl"] == pytest.approx(0.1)
    assert update.figures["importance_cut"] == 1.0
    result.loss_sum.backward()
    # d/dlogp: -A + 0.1 d and 0 + 0.1 d, over 2; d/dH: -0.5 over 2; nothing where masked
    assert logprobs.grad.tolist() == pytest.approx([(-3 + 0.02) / 2, 0.02, 0.0])
    assert entropies.grad.tolist() == pytest.approx([-0.25, -0.25, 0.0])


def test_engine_log_probabilities_may_be_the_reference_of_the_ratio():
    sequences = [
        TrainingSequence(prompt_token_ids=(1,), response_token_ids=(2,), engine_logprobs=(-1.0,), advantage=1.0)
    ]
    algorithm = DapoConfig(old_logprobs="engine", importance=ImportanceConfig(mode="off"))
    (update,) = _prepare_with(torch.tensor([-1.2, 0.0]), pack(sequences, [0]), algorithm)
    statistics = TokenStatistics(logprobs=torch.tensor([-1.0 + math.log(1.1), 0.0]), entropies=torch.tensor([0.0, 0.0]))
    result = make_policy_loss(algorithm, update.batches)(statistics, update.batches[0].batch, 0)
    assert result.loss_sum.item() == pytest.approx(-1.1)
    assert update.figures["importance_weight"] == 1.0
    assert update.figures["logprob_mismatch"] == pytest.approx(0.2)


def test_masked_sequence_has_no_loss_but_counts_in_the_denominator():
    sequences = [
        TrainingSequence(prompt_token_ids=(1,), response_token_ids=(2,), engine_logprobs=(-1.0,), advantage=advantage)
        for advantage in (-1.0, 1.0)
    ]
    algorithm = DapoConfig(max_divergence=0.5)
    old = torch.tensor([-1.0, 0.0, -1.0, 0.0])
    (update,) = _prepare_with(old, pack(sequences, [0, 1]), algorithm)
    logprobs = torch.tensor([-1.6, 0.0, -1.6, 0.0], requires_grad=True)
    statistics = TokenStatistics(logprobs=logprobs, entropies=torch.zeros(4))
    result = make_policy_loss(algorithm, update.batches)(statistics, update.batches[0].batch, 0)
    result.loss_sum.backward()
    # Both fell by 0.6; only the negative one is masked. The positive one: ratio exp(-0.6), not clipped below for A > 0.
    assert result.loss_sum.item() == pytest.approx(-math.exp(-0.6))
    assert logprobs.grad.tolist() == pytest.approx([0.0, 0.0, -math.exp(-0.6), 0.0])
    assert (update.global_count, result.metric_sums["sequence_masked"]) == (2.0, 1.0)


def test_rejected_sample_leaves_the_others_as_if_it_were_not_there():
    sequences = _sequences(6)
    broken = TrainingSequence(
        prompt_token_ids=(1, 2), response_token_ids=(3, 4), engine_logprobs=(-0.5, math.nan), advantage=1.0
    )
    for algorithm in (DapoConfig(), GrpoConfig(), GspoConfig()):
        with_broken = _run(algorithm, [*sequences, broken], [list(range(7))])
        without = _run(algorithm, sequences, [list(range(6))])
        assert with_broken[:2] == pytest.approx(without[:2])
        assert with_broken[2]["num_tokens"] == without[2]["num_tokens"]
        assert with_broken[2]["count"] == without[2]["count"]
        assert with_broken[2]["num_samples_rejected/undefined_logprobs"] == 1.0
        assert with_broken[2]["num_tokens_rejected"] == 2.0


def test_supervised_loss_sums_the_cross_entropy_of_counted_labels():
    batch = pack(_sequences(4, seed=2), [0, 1, 2, 3])
    logprobs = torch.linspace(-2, -1, batch.num_tokens).requires_grad_()
    statistics = TokenStatistics(logprobs=logprobs, entropies=torch.zeros(batch.num_tokens))
    result = supervised_loss(statistics, batch, 0)
    expected = -sum(value for value, counts in zip(logprobs.tolist(), batch.loss_mask.tolist(), strict=True) if counts)
    assert result.loss_sum.item() == pytest.approx(expected)
    assert result.metric_sums == pytest.approx({"cross_entropy": expected, "num_tokens": float(batch.num_loss_tokens)})
    result.loss_sum.backward()
    assert logprobs.grad.tolist() == [-float(counts) for counts in batch.loss_mask.tolist()]


@pytest.mark.parametrize("algorithm", _ALGORITHMS, ids=lambda a: a.type)
def test_batch_of_no_weight_gives_zero_sums_and_can_go_backward(algorithm):
    (update,) = _prepare(algorithm, [[pack([], [])]])
    batch = update.batches[0].batch
    logprobs = torch.tensor([-1.0], requires_grad=True)
    statistics = TokenStatistics(logprobs=logprobs, entropies=torch.tensor([2.0]))
    result = make_policy_loss(algorithm, update.batches)(statistics, batch, 0)
    result.loss_sum.backward()
    assert set(result.metric_sums.values()) == {0.0}
    assert logprobs.grad.tolist() == [0.0]
    assert (update.global_count, update.max_mismatch) == (0.0, 0.0)


class _Fixed:
    """A policy that has the log-probabilities it is told."""

    def __init__(self, old, reference):
        self._old, self._reference = old, reference

    def statistics(self, batches):
        return [TokenStatistics(logprobs=self._old, entropies=torch.zeros_like(self._old)) for _ in batches]

    def reference_logprobs(self, batches):
        return [self._reference for _ in batches]

    def sum_over_ranks(self, values):
        return dict(values)


def _prepare_with(old, batch, algorithm, *, reference=None):
    preparation = UpdatePreparation(_Fixed(old, reference), algorithm, max_response_tokens=_MAX_RESPONSE_TOKENS)
    return preparation.prepare([[batch]])
