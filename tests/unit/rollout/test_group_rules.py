"""Which groups are dropped, and by which rule."""

import math

import pytest

from services.common.records import FinishReason
from services.rollout.engine import EngineResponse
from services.rollout.group_rules import GroupRules, are_equal
from services.rollout.scoring import ScoredResponse

STOP, LENGTH = FinishReason.STOP, FinishReason.LENGTH


def scored(*items: tuple[float, FinishReason]) -> list[ScoredResponse]:
    return [
        ScoredResponse(
            response=EngineResponse(
                token_ids=(1,), logprobs=(-1.0,), version_spans=(), finish_reason=reason, num_verify_steps=0
            ),
            text="",
            reward=reward,
        )
        for reward, reason in items
    ]


@pytest.mark.parametrize(
    ("rewards", "wanted"),
    [
        ([1.0, 1.0, 1.0], True),
        ([0.0, -0.0], True),
        ([0.5], True),
        ([1.0, 1.0, 0.0], False),
        ([0.1 + 0.2, 0.3], False),
        # A leave-one-out deviation of the first is zero, and so is a standard deviation below 1e-8.
        ([0.0, 1.0, 1.0, 1.0], False),
        ([0.0, 1e-9], False),
        # Their sum and their mean overflow or vanish; they are still not equal.
        ([1e308, -1e308, 1e308], False),
        ([5e-324, 0.0], False),
    ],
)
def test_equal_means_equal_as_numbers(rewards: list[float], wanted: bool) -> None:
    assert are_equal(rewards) is wanted


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("drop_equal_rewards", [True, False])
def test_a_group_with_a_reward_that_is_no_number_is_dropped_under_every_recipe(
    bad: float, drop_equal_rewards: bool
) -> None:
    rules = GroupRules(drop_equal_rewards=drop_equal_rewards, filter_truncated=False)
    assert rules.reason_to_drop(scored((bad, STOP), (bad, STOP))) == "non_finite_reward"
    assert rules.reason_to_drop(scored((1.0, STOP), (bad, STOP))) == "non_finite_reward"


@pytest.mark.parametrize(
    ("drop_equal_rewards", "filter_truncated", "items", "wanted"),
    [
        (True, False, [(1.0, STOP), (1.0, STOP)], "equal_rewards"),
        (False, False, [(1.0, STOP), (1.0, STOP)], None),
        (True, True, [(0.0, LENGTH), (0.0, LENGTH)], "equal_rewards"),
        (False, True, [(0.0, LENGTH), (0.0, LENGTH)], "all_truncated"),
        (True, True, [(0.5, LENGTH), (0.0, LENGTH)], "all_truncated"),
        (True, False, [(0.5, LENGTH), (0.0, LENGTH)], None),
        # The one that ended learns from the ones that were cut: they stay in the group's statistics.
        (True, True, [(1.0, STOP), (0.0, LENGTH)], None),
    ],
)
def test_the_first_rule_that_applies_names_the_reason(
    drop_equal_rewards: bool, filter_truncated: bool, items: list[tuple[float, FinishReason]], wanted: str | None
) -> None:
    rules = GroupRules(drop_equal_rewards=drop_equal_rewards, filter_truncated=filter_truncated)
    assert rules.reason_to_drop(scored(*items)) == wanted
