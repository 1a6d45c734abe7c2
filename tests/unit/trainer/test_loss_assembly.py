import math
import random

import pytest
import torch

from services.common.config.trainer import AlgorithmConfig
from services.trainer.loss_assembly import (
    largest_mismatch,
    make_policy_loss,
    reject_unusable,
    supervised_loss,
)
from services.trainer.packing import TrainingSequence, pack
from services.trainer.policy import TokenStatistics

_ALGORITHMS = [
    AlgorithmConfig(),
    AlgorithmConfig(type="gspo", clip_low=3e-4, clip_high=4e-4),
    AlgorithmConfig(tis_cap=0),
    AlgorithmConfig(old_logprobs="engine", tis_cap=0),
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


class _FakePolicy:
    """Log-probabilities that depend on a token's id, its place and one weight, never on the packing."""

    def __init__(self, weight):
        self.weight = torch.tensor(weight, dtype=torch.float64, requires_grad=True)

    def statistics(self, batch):
        logprobs = -0.3 - self.weight * (batch.labels.double() + 0.1 * batch.position_ids)
        return TokenStatistics(logprobs=logprobs, entropies=0.01 * batch.labels.double())


def _run(algorithm, sequences, parts):
    """Loss, gradient and metric sums over the micro-batches of the parts."""
    batches = [pack(sequences, part) for part in parts]
    old = [_FakePolicy(0.05).statistics(batch).logprobs.detach() for batch in batches]
    loss_function, policy = make_policy_loss(algorithm, old), _FakePolicy(0.06)
    results = [loss_function(policy.statistics(batch), batch, i) for i, batch in enumerate(batches)]
    for result in results:
        result.loss_sum.backward()
    totals = {name: sum(r.metric_sums[name] for r in results) for name in results[0].metric_sums}
    return sum(r.loss_sum.item() for r in results), policy.weight.grad.item(), totals


@pytest.mark.parametrize("algorithm", _ALGORITHMS, ids=lambda a: f"{a.type}-{a.old_logprobs}-{a.tis_cap}")
@pytest.mark.parametrize("num_parts", [2, 5, 12])
def test_sums_do_not_depend_on_the_split_into_micro_batches(algorithm, num_parts):
    sequences = _sequences(12)
    whole = _run(algorithm, sequences, [list(range(12))])
    parts = _run(algorithm, sequences, [list(range(12))[start::num_parts] for start in range(num_parts)] + [[]])
    assert parts[0] == pytest.approx(whole[0], rel=1e-6)
    assert parts[1] == pytest.approx(whole[1], rel=1e-6)
    assert parts[2] == pytest.approx(whole[2], rel=1e-6)
    assert whole[1] != 0.0


def test_hand_case_of_grpo_with_importance_weights():
    sequences = [
        TrainingSequence(prompt_token_ids=(1,), response_token_ids=(2, 3), engine_logprobs=(-1.0, -0.5), advantage=2.0)
    ]
    batch = pack(sequences, [0])
    old = torch.tensor([-1.0 + math.log(0.5), -0.5 + math.log(3.0), 7.0])
    logprobs = old + torch.tensor([math.log(1.1), math.log(1.5), -9.0])
    statistics = TokenStatistics(logprobs=logprobs, entropies=torch.tensor([0.5, 0.25, 99.0]))
    result = make_policy_loss(AlgorithmConfig(), [old])(statistics, batch, 0)
    # token one: ratio 1.1, weight 0.5: -1.1 x 2 x 0.5; token two: ratio 1.5 clipped to 1.28, weight 3 cut to 2
    assert result.loss_sum.item() == pytest.approx(-1.1 - 5.12)
    assert result.metric_sums == pytest.approx(
        {
            "policy_loss": -6.22,
            "clip_fraction": 1.0,
            "entropy": 0.75,
            "importance_weight": 2.5,
            "logprob_mismatch": math.log(2.0) + math.log(3.0),
            "num_tokens": 2.0,
        }
    )
    assert largest_mismatch([batch], [old]) == pytest.approx(math.log(3.0))


def test_engine_log_probabilities_may_be_the_reference_of_the_ratio():
    sequences = [
        TrainingSequence(prompt_token_ids=(1,), response_token_ids=(2,), engine_logprobs=(-1.0,), advantage=1.0)
    ]
    batch = pack(sequences, [0])
    statistics = TokenStatistics(logprobs=torch.tensor([-1.0 + math.log(1.1), 0.0]), entropies=torch.tensor([0.0, 0.0]))
    algorithm = AlgorithmConfig(old_logprobs="engine", tis_cap=0)
    result = make_policy_loss(algorithm, [torch.tensor([-1.2, 0.0])])(statistics, batch, 0)
    assert result.loss_sum.item() == pytest.approx(-1.1)
    assert result.metric_sums["importance_weight"] == 1.0
    assert result.metric_sums["logprob_mismatch"] == pytest.approx(0.2)


def test_rejected_sample_leaves_the_others_as_if_it_were_not_there():
    sequences = _sequences(6)
    broken = TrainingSequence(
        prompt_token_ids=(1, 2), response_token_ids=(3, 4), engine_logprobs=(-0.5, math.nan), advantage=1.0
    )
    batch = pack([*sequences, broken], range(7))
    old = _FakePolicy(0.05).statistics(batch).logprobs.detach()
    accepted = reject_unusable([batch], [old])
    assert accepted.num_rejected == 1
    policy = _FakePolicy(0.06)
    result = make_policy_loss(AlgorithmConfig(), [old])(policy.statistics(batch), accepted.batches[0], 0)
    result.loss_sum.backward()
    expected = _run(AlgorithmConfig(), sequences, [list(range(6))])
    assert (result.loss_sum.item(), policy.weight.grad.item()) == pytest.approx(expected[:2])
    assert accepted.batches[0].num_loss_tokens == expected[2]["num_tokens"]


def test_sample_with_a_nan_of_the_trainer_is_rejected_too():
    batch = pack(_sequences(3, seed=1), [0, 1, 2])
    old = torch.zeros(batch.num_tokens)
    old[batch.loss_mask.nonzero()[0]] = math.nan
    accepted = reject_unusable([batch, pack([], [])], [old, torch.tensor([math.nan])])
    assert accepted.num_rejected == 1
    assert 0 < accepted.batches[0].num_loss_tokens < batch.num_loss_tokens


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


def test_batch_of_no_weight_gives_zero_sums_and_can_go_backward():
    batch = pack([], [])
    logprobs = torch.tensor([-1.0], requires_grad=True)
    statistics = TokenStatistics(logprobs=logprobs, entropies=torch.tensor([2.0]))
    result = make_policy_loss(AlgorithmConfig(), [torch.tensor([-3.0])])(statistics, batch, 0)
    result.loss_sum.backward()
    assert set(result.metric_sums.values()) == {0.0}
    assert logprobs.grad.tolist() == [0.0]
    assert largest_mismatch([batch], [torch.tensor([-3.0])]) == 0.0
