import pytest

from services.common.records import FinishReason, Sample, VersionSpan
from services.common.reply_figures import has_thought, mean_response_tokens, samples_accept_length, thinking_rate


def _sample(num_tokens, num_verify_steps):
    return Sample(
        sample_id="r/0/0/0",
        response_token_ids=(1,) * num_tokens,
        logprobs=(0.0,) * num_tokens,
        version_spans=(VersionSpan(step=0, num_tokens=num_tokens),) if num_tokens else (),
        reward=0.0,
        finish_reason=FinishReason.STOP,
        num_verify_steps=num_verify_steps,
    )


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        ("<think>231</think>\\boxed{132}", True),
        ("<think>two\nlines</think>", True),
        ("<think></think>\\boxed{132}", False),
        ("<think> \n</think>", False),
        ("<think></think><think>1</think>", True),
        ("<think>231", False),
        ("231</think>", False),
        ("", False),
    ],
)
def test_a_thought_is_text_between_both_tags(reply, expected):
    assert has_thought(reply) is expected


def test_thinking_rate_is_a_share_and_zero_without_replies():
    assert thinking_rate(["<think>1</think>", "<think></think>", "", "<think>2</think>"]) == 0.5
    assert thinking_rate([]) == 0.0


def test_mean_response_tokens_counts_empty_replies():
    assert mean_response_tokens([_sample(4, 0), _sample(0, 0)]) == 2.0
    assert mean_response_tokens([]) == 0.0


def test_accept_length_leaves_out_the_first_token():
    # 10 tokens after the first in 5 steps, 3 in 3 steps: 13 / 8
    assert samples_accept_length([_sample(11, 5), _sample(4, 3), _sample(1, 0)]) == 13 / 8


def test_accept_length_is_zero_without_speculation():
    assert samples_accept_length([_sample(11, 0)]) == 0.0
    assert samples_accept_length([]) == 0.0
