import math
import random

import hypothesis.strategies as st
import pytest
from hypothesis import given

from services.common.errors import InvalidInputError
from services.trainer.packing import TrainingSequence, pack, plan_micro_batches, split_updates
from services.trainer.sequence_cost import SequenceCost


def _sequence(prompt, response, *, advantage=0.5):
    return TrainingSequence(
        prompt_token_ids=tuple(prompt),
        response_token_ids=tuple(response),
        engine_logprobs=tuple(-0.1 * (i + 1) for i in range(len(response))),
        advantage=advantage,
    )


@given(
    st.lists(st.integers(min_value=1, max_value=50), max_size=60),
    st.integers(min_value=50, max_value=200),
    st.integers(min_value=1, max_value=5),
)
def test_every_sample_is_planned_once_under_the_cap_with_equal_counts(lengths, max_tokens, data_parallel_size):
    plan = plan_micro_batches(lengths, max_tokens=max_tokens, data_parallel_size=data_parallel_size)
    assert len(plan) == data_parallel_size
    assert len({len(rank) for rank in plan}) == 1
    assert len(plan[0]) >= 1
    assert sorted(index for rank in plan for batch in rank for index in batch) == list(range(len(lengths)))
    assert all(sum(lengths[index] for index in batch) <= max_tokens for rank in plan for batch in rank)


@given(
    st.lists(st.integers(min_value=1, max_value=50), min_size=1, max_size=60),
    st.integers(min_value=1, max_value=5),
)
def test_ranks_differ_by_less_than_the_longest_sequence_when_one_batch_each_suffices(lengths, data_parallel_size):
    # Longest first into the emptiest rank: the last sequence put on the fullest rank found it the emptiest.
    plan = plan_micro_batches(lengths, max_tokens=100_000, data_parallel_size=data_parallel_size)
    totals = [sum(lengths[index] for batch in rank for index in batch) for rank in plan]
    assert all(len(rank) == 1 for rank in plan)
    assert max(totals) - min(totals) <= max(lengths)


@given(st.lists(st.integers(min_value=1, max_value=64), min_size=1, max_size=80))
def test_number_of_micro_batches_is_at_most_twice_the_least_possible(lengths):
    # With n bins refused, some bin plus a sequence exceeded the cap while every bin was at least as full.
    plan = plan_micro_batches(lengths, max_tokens=64, data_parallel_size=1)
    assert len(plan[0]) <= 2 * math.ceil(sum(lengths) / 64)


COSTS = st.builds(
    SequenceCost,
    per_token=st.floats(min_value=0.01, max_value=10),
    per_token_squared=st.floats(min_value=0, max_value=10),
)


@given(
    st.lists(st.integers(min_value=1, max_value=50), max_size=60),
    st.integers(min_value=50, max_value=200),
    st.integers(min_value=1, max_value=5),
    COSTS,
)
def test_the_cap_counts_and_every_sample_hold_under_any_cost(lengths, max_tokens, data_parallel_size, cost):
    plan = plan_micro_batches(lengths, max_tokens=max_tokens, data_parallel_size=data_parallel_size, cost=cost)
    assert len(plan) == data_parallel_size
    assert len({len(rank) for rank in plan}) == 1
    assert len(plan[0]) >= 1
    assert sorted(index for rank in plan for batch in rank for index in batch) == list(range(len(lengths)))
    assert all(sum(lengths[index] for index in batch) <= max_tokens for rank in plan for batch in rank)


@given(
    st.lists(st.integers(min_value=1, max_value=50), min_size=1, max_size=60),
    st.integers(min_value=50, max_value=200),
    st.integers(min_value=1, max_value=5),
    COSTS,
)
def test_ranks_differ_by_at_most_the_heaviest_less_the_lightest_micro_batch(
    lengths, max_tokens, data_parallel_size, cost
):
    plan = plan_micro_batches(lengths, max_tokens=max_tokens, data_parallel_size=data_parallel_size, cost=cost)
    batches = [[sum(cost.of(lengths[index]) for index in batch) for batch in rank] for rank in plan]
    totals = [sum(rank) for rank in batches]
    spread = max(map(max, batches)) - min(map(min, batches))
    assert max(totals) - min(totals) <= spread + 1e-9 * max(totals)


@given(
    st.lists(st.integers(min_value=1, max_value=50), min_size=1, max_size=60),
    st.integers(min_value=50, max_value=200),
    st.integers(min_value=1, max_value=5),
)
def test_balanced_by_tokens_ranks_differ_by_at_most_the_longest_sequence(lengths, max_tokens, data_parallel_size):
    plan = plan_micro_batches(lengths, max_tokens=max_tokens, data_parallel_size=data_parallel_size)
    totals = [sum(lengths[index] for batch in rank for index in batch) for rank in plan]
    assert max(totals) - min(totals) <= max(lengths)


def test_by_work_a_long_sample_weighs_as_much_as_many_short_ones_and_the_cap_still_binds():
    # n * n: the sample of 6 weighs 36, nine of 2 weigh 4 each. By tokens 24 are halved to 12 and 12.
    lengths = [6, *[2] * 9]
    by_tokens = plan_micro_batches(lengths, max_tokens=64, data_parallel_size=2)
    assert [sum(lengths[index] for index in rank[0]) for rank in by_tokens] == [12, 12]
    quadratic = SequenceCost(per_token=1e-9, per_token_squared=1.0)
    by_work = plan_micro_batches(lengths, max_tokens=64, data_parallel_size=2, cost=quadratic)
    assert by_work == [[[1, 2, 3, 4, 5, 6, 7, 8, 9]], [[0]]]
    # Under a cap of 10 tokens the nine of 2 (18) must be split: two micro-batches a rank.
    capped = plan_micro_batches(lengths, max_tokens=10, data_parallel_size=2, cost=quadratic)
    assert [len(rank) for rank in capped] == [2, 2]
    assert all(sum(lengths[index] for index in batch) <= 10 for rank in capped for batch in rank)


def test_by_work_every_rank_of_a_long_tailed_round_gets_nearly_the_same():
    # 512 responses, log-normal around 3 thousand tokens and cut at 32 thousand, on 8 ranks, 355B's cost.
    draw = random.Random(0)
    lengths = [min(32_000, max(100, int(draw.lognormvariate(8.0, 1.0)))) for _ in range(512)]
    cost = SequenceCost(per_token=32.9e9, per_token_squared=1.13e6)

    def imbalance(plan):
        totals = [sum(cost.of(lengths[index]) for batch in rank for index in batch) for rank in plan]
        return max(totals) / (sum(totals) / len(totals)) - 1

    by_tokens = plan_micro_batches(lengths, max_tokens=65_536, data_parallel_size=8)
    by_work = plan_micro_batches(lengths, max_tokens=65_536, data_parallel_size=8, cost=cost)
    assert imbalance(by_work) < 0.01
    assert imbalance(by_work) < imbalance(by_tokens)


def test_hand_case_is_balanced():
    # 30 tokens for two ranks of at most 8: two micro-batches each. 6, 5, 5, 5 open them; 3 joins the first 5 (8);
    # 2 and 2 the other 5s (7 and 7); the last 2 joins the 6 (8). Each rank gets one of 8 and one of 7.
    plan = plan_micro_batches([6, 5, 5, 5, 3, 2, 2, 2], max_tokens=8, data_parallel_size=2)
    assert plan == [[[1, 4], [3, 6]], [[0, 7], [2, 5]]]


def test_ranks_short_of_work_get_an_empty_micro_batch():
    assert plan_micro_batches([4], max_tokens=8, data_parallel_size=3) == [[[0]], [[]], [[]]]
    assert plan_micro_batches([], max_tokens=8, data_parallel_size=2) == [[[]], [[]]]


def test_sample_above_the_cap_is_named_with_length_and_cap():
    with pytest.raises(InvalidInputError, match=r"sample 1 has 9 tokens; wanted 1 to .* 8"):
        plan_micro_batches([3, 9], max_tokens=8, data_parallel_size=1)


@given(st.integers(min_value=0, max_value=300), st.integers(min_value=1, max_value=8), st.text(max_size=5))
def test_updates_partition_the_samples_evenly(num_samples, updates_per_step, seed):
    shares = split_updates(num_samples, updates_per_step=updates_per_step, seed=seed)
    assert sorted(index for share in shares for index in share) == list(range(num_samples))
    assert len(shares) == min(num_samples, updates_per_step)
    sizes = [len(share) for share in shares]
    assert max(sizes, default=0) - min(sizes, default=0) <= 1


def test_updates_are_shuffled_by_the_seed():
    first = split_updates(256, updates_per_step=2, seed="0/7")
    assert first == split_updates(256, updates_per_step=2, seed="0/7")
    assert first != split_updates(256, updates_per_step=2, seed="0/8")
    # a shuffled half holds about as many early samples as late ones: 64 each, standard deviation 4
    assert 44 <= sum(index < 128 for index in first[0]) <= 84


def test_packed_inputs_are_aligned_to_the_labels():
    sequences = [_sequence([1, 2, 3], [4, 5], advantage=2.0), _sequence([6], [7, 8, 9], advantage=-1.0)]
    batch = pack(sequences, [1, 0])
    assert batch.token_ids.tolist() == [6, 7, 8, 9, 1, 2, 3, 4, 5]
    assert batch.labels.tolist() == [7, 8, 9, 0, 0, 0, 4, 5, 0]
    assert batch.position_ids.tolist() == [0, 1, 2, 3, 0, 1, 2, 3, 4]
    assert batch.cu_seqlens.tolist() == [0, 4, 9]
    assert batch.loss_mask.tolist() == [True, True, True, False, False, False, True, True, False]
    assert batch.advantages.tolist() == [-1.0, -1.0, -1.0, 0.0, 0.0, 0.0, 2.0, 2.0, 0.0]
    assert batch.engine_logprobs.tolist() == pytest.approx([-0.1, -0.2, -0.3, 0, 0, 0, -0.1, -0.2, 0])
    assert batch.sample_indices == (1, 0)
    assert (batch.num_tokens, batch.num_sequences, batch.num_loss_tokens) == (9, 2, 5)


def test_empty_response_has_no_label():
    batch = pack([_sequence([1, 2], [])], [0])
    assert batch.token_ids.tolist() == [1, 2]
    assert batch.labels.tolist() == [0, 0]
    assert batch.num_loss_tokens == 0


def test_no_sample_makes_one_token_of_no_weight():
    batch = pack([_sequence([1], [2])], [])
    assert batch.token_ids.tolist() == [0]
    assert batch.cu_seqlens.tolist() == [0, 1]
    assert batch.num_loss_tokens == 0
    assert batch.sample_indices == ()


def test_nan_log_probability_is_kept_for_the_loss_to_reject():
    sequence = TrainingSequence(
        prompt_token_ids=(1,), response_token_ids=(2, 3), engine_logprobs=(-0.5, math.nan), advantage=1.0
    )
    assert pack([sequence], [0]).engine_logprobs.isnan().tolist() == [False, True, False]
