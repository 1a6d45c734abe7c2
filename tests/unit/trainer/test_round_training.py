"""Which samples of a round reach the policy, with which advantages and under which denominator."""

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

from services.common.config.algorithm import DapoConfig
from services.common.config.trainer import TrainerConfig
from services.common.errors import InvalidInputError
from services.common.records import FinishReason, Group, Sample
from services.trainer.batch import PackedBatch
from services.trainer.fake_policy import FakePolicy
from services.trainer.policy import LossFunction, UpdateFigures
from services.trainer.round_training import RoundTraining
from services.trainer.sample_selection import SampleSelection
from services.trainer.sequence_cost import BY_TOKENS, SequenceCost

STOP, LENGTH = FinishReason.STOP, FinishReason.LENGTH


class RecordingPolicy(FakePolicy):
    """Keeps what every update was asked to train on."""

    def __init__(self) -> None:
        super().__init__(vocab_size=8)
        self.asked: list[tuple[list[PackedBatch], float]] = []

    def update(
        self,
        batches: Sequence[PackedBatch],
        loss_function: LossFunction,
        *,
        global_count: float,
        lr: float,
        mtp_lr: float,
        weight_decay: float,
    ) -> UpdateFigures:
        self.asked.append((list(batches), global_count))
        return super().update(
            batches, loss_function, global_count=global_count, lr=lr, mtp_lr=mtp_lr, weight_decay=weight_decay
        )


def make_group(*samples: tuple[int, float, FinishReason]) -> Group:
    """A group with a prompt of one token; samples are (tokens, reward, reason)."""
    return Group(
        group_id="g",
        round=0,
        position=0,
        prompt_token_ids=(1,),
        samples=tuple(
            Sample(
                sample_id=f"g/{index}",
                response_token_ids=(2,) * num_tokens,
                logprobs=(-1.0,) * num_tokens,
                version_spans=(),
                reward=reward,
                finish_reason=reason,
                num_verify_steps=0,
            )
            for index, (num_tokens, reward, reason) in enumerate(samples)
        ),
    )


def training(
    policy: FakePolicy,
    *,
    drop_overlong: bool = False,
    leave_out_truncated: bool = False,
    cost: SequenceCost = BY_TOKENS,
    max_tokens: int = 8,
    updates_per_step: int = 1,
) -> RoundTraining:
    return RoundTraining(
        policy,
        TrainerConfig(
            updates_per_step=updates_per_step,
            max_tokens_per_rank=max_tokens,
            algorithm=DapoConfig(normalize_std=False),
        ),
        selection=SampleSelection(
            max_tokens=max_tokens, drop_overlong=drop_overlong, leave_out_truncated=leave_out_truncated
        ),
        sequence_cost=cost,
        max_response_tokens=8,
        seed=0,
    )


def advantages_by_length(batches: Sequence[PackedBatch]) -> dict[int, float]:
    """The advantage of each trained sequence, by its number of loss tokens."""
    found = {}
    for batch in batches:
        for start, end in zip(batch.cu_seqlens[:-1].tolist(), batch.cu_seqlens[1:].tolist(), strict=True):
            mask = batch.loss_mask[start:end]
            if mask.any():
                found[int(mask.sum())] = batch.advantages[start:end][mask].unique().item()
    return found


@pytest.mark.parametrize(
    ("rule", "left_out_tokens", "reason"),
    [({"leave_out_truncated": True}, 4, LENGTH), ({"drop_overlong": True}, 9, STOP)],
)
def test_a_left_out_sample_counts_in_its_groups_mean_and_in_no_denominator(
    rule: dict[str, bool], left_out_tokens: int, reason: FinishReason
) -> None:
    policy = RecordingPolicy()
    group = make_group((2, 1.0, STOP), (3, 0.0, STOP), (left_out_tokens, 0.0, reason))
    figures = training(policy, **rule).train(0, [group])
    ((batches, global_count),) = policy.asked
    # the mean of all three is 1/3
    assert advantages_by_length(batches) == pytest.approx({2: 2 / 3, 3: -1 / 3})
    assert (global_count, figures["num_tokens"]) == (5.0, 5.0)


def test_a_round_without_a_sample_to_train_on_changes_nothing_and_makes_no_nan() -> None:
    policy = RecordingPolicy()
    before = policy.owned_shards()[0].tensor.clone()
    group = make_group((2, 1.0, LENGTH), (3, 0.0, LENGTH))
    figures = training(policy, leave_out_truncated=True, updates_per_step=2).train(0, [group])
    assert (figures, policy.asked) == ({"max_mismatch": 0.0}, [])
    assert torch.equal(policy.owned_shards()[0].tensor, before)


def test_a_sample_with_a_nan_log_probability_is_rejected_and_counted() -> None:
    group = make_group((2, 1.0, STOP), (3, 0.0, STOP), (4, 0.0, STOP))
    broken = replace(group.samples[1], logprobs=(-1.0, math.nan, -1.0))
    group = replace(group, samples=(group.samples[0], broken, group.samples[2]))
    policy = RecordingPolicy()
    figures = training(policy).train(0, [group])
    ((batches, global_count),) = policy.asked
    # its reward stays in the group's mean of 1/3
    assert advantages_by_length(batches) == pytest.approx({2: 2 / 3, 4: -1 / 3})
    assert (global_count, figures["num_tokens"], figures["num_tokens_rejected"]) == (6.0, 6.0, 3.0)
    assert figures["num_samples_rejected/undefined_logprobs"] == 1.0
    assert math.isfinite(figures["gradient_norm"])


def test_a_sample_too_long_is_an_error_before_any_update() -> None:
    policy = RecordingPolicy()
    with pytest.raises(InvalidInputError, match="sample g/1 has 9 tokens"):
        training(policy).train(0, [make_group((2, 1.0, STOP), (8, 0.0, STOP))])
    assert policy.asked == []


def test_the_update_is_the_same_however_micro_batches_are_balanced() -> None:
    group = make_group(*((length, float(length % 2), STOP) for length in (1, 2, 3, 4, 5, 6, 7)))
    tables = []
    for max_tokens, cost in [(64, BY_TOKENS), (9, BY_TOKENS), (9, SequenceCost(per_token=0.1, per_token_squared=1.0))]:
        policy = RecordingPolicy()
        training(policy, max_tokens=max_tokens, cost=cost).train(0, [group])
        tables.append(policy.owned_shards()[0].tensor.clone())
        assert all(batch.num_tokens <= max_tokens for batches, _ in policy.asked for batch in batches)
    assert torch.allclose(tables[1], tables[0], rtol=0, atol=1e-6)
    assert torch.allclose(tables[2], tables[0], rtol=0, atol=1e-6)
