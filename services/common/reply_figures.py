"""Figures about replies: how many think, how long they are, how well the draft was accepted. Pure."""

import re
from collections.abc import Sequence

from services.common.accept_length import accept_length
from services.common.records import Sample

_THOUGHT = re.compile(r"<think>(.*?)</think>", re.DOTALL)


def has_thought(reply: str) -> bool:
    """Whether there is more than white space between <think> and </think>; an unclosed thought does not count."""
    return any(thought.strip() for thought in _THOUGHT.findall(reply))


def thinking_rate(replies: Sequence[str]) -> float:
    """Share of replies with a thought, 0 to 1; 0 without replies."""
    return sum(map(has_thought, replies)) / len(replies) if replies else 0.0


def mean_response_tokens(samples: Sequence[Sample]) -> float:
    """Mean response length, in tokens; 0 without samples."""
    if not samples:
        return 0.0
    return sum(len(sample.response_token_ids) for sample in samples) / len(samples)


def samples_accept_length(samples: Sequence[Sample]) -> float:
    """The accept length of those samples that have verify steps; 0 without any."""
    verified = [sample for sample in samples if sample.num_verify_steps > 0]
    return accept_length(
        num_tokens=sum(len(sample.response_token_ids) for sample in verified),
        num_responses=len(verified),
        num_verify_steps=sum(sample.num_verify_steps for sample in verified),
    )
