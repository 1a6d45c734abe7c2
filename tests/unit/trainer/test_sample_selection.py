"""Which samples are trained on, counted by hand."""

import pytest

from services.common.errors import InvalidInputError
from services.common.records import FinishReason, Group, Sample
from services.trainer.sample_selection import SampleSelection


def group(name: str, *, prompt_tokens: int, responses: list[tuple[int, FinishReason]]) -> Group:
    return Group(
        group_id=name,
        round=0,
        position=0,
        prompt_token_ids=(1,) * prompt_tokens,
        samples=tuple(
            Sample(
                sample_id=f"{name}/{index}",
                response_token_ids=(2,) * num_tokens,
                logprobs=(-1.0,) * num_tokens,
                version_spans=(),
                reward=0.0,
                finish_reason=reason,
                num_verify_steps=0,
            )
            for index, (num_tokens, reason) in enumerate(responses)
        ),
    )


STOP, LENGTH = FinishReason.STOP, FinishReason.LENGTH
GROUPS = [
    group("a", prompt_tokens=3, responses=[(5, STOP), (6, STOP), (5, LENGTH)]),  # 8, 9 and 8 tokens
    group("b", prompt_tokens=8, responses=[(0, STOP), (1, LENGTH)]),  # 8 and 9 tokens
]


def selection(*, drop_overlong: bool, leave_out_truncated: bool, max_tokens: int = 8) -> SampleSelection:
    return SampleSelection(max_tokens=max_tokens, drop_overlong=drop_overlong, leave_out_truncated=leave_out_truncated)


def test_samples_above_the_cap_are_left_out_and_counted() -> None:
    selected = selection(drop_overlong=True, leave_out_truncated=False).select(GROUPS)
    assert selected.indices == (0, 2, 3)
    assert selected.num_left_out == {"overlong": 2}


def test_a_sample_that_is_truncated_and_too_long_counts_once() -> None:
    selected = selection(drop_overlong=True, leave_out_truncated=True).select(GROUPS)
    assert selected.indices == (0, 3)
    assert selected.num_left_out == {"truncated": 2, "overlong": 1}


def test_everything_is_selected_when_everything_fits() -> None:
    selected = selection(drop_overlong=False, leave_out_truncated=False, max_tokens=9).select(GROUPS)
    assert (selected.indices, selected.num_left_out) == ((0, 1, 2, 3, 4), {})


def test_without_the_drop_rule_the_sample_is_named_with_its_length_the_cap_and_the_remedy() -> None:
    message = (
        r"sample a/1 has 9 tokens \(3 prompt, 6 response\), more than trainer.max_tokens_per_rank 8; .*"
        r'trainer.overlong_samples="drop"'
    )
    with pytest.raises(InvalidInputError, match=message):
        selection(drop_overlong=False, leave_out_truncated=False).select(GROUPS)


def test_no_groups_select_nothing() -> None:
    selected = selection(drop_overlong=False, leave_out_truncated=True).select([])
    assert (selected.indices, selected.num_left_out) == ((), {})
