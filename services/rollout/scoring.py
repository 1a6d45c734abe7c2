"""Turns an engine's responses into scored samples."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from services.common.records import FinishReason, Prompt, Sample, Score
from services.rollout.engine import EngineResponse


@dataclass(frozen=True, kw_only=True)
class ResponseToScore:
    """One response as the grader sees it."""

    sample_id: str
    """Echoed for messages."""
    prompt: str
    """The prompt as text."""
    response: str
    """The response as text, special tokens included."""
    label: str
    """The right answer."""


class Scorer(Protocol):
    """Scores responses; blocking, safe to call from several threads."""

    def score_batch(self, items: Sequence[ResponseToScore]) -> list[Score]:
        """One score per item, in order.

        Raises:
            UnavailableError: the grader cannot be reached.
            OverloadedError: the grader has no room now.
        """
        ...


class TextDecoder(Protocol):
    """The part of a tokenizer that scoring needs."""

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of the ids, special tokens included."""
        ...


@dataclass(frozen=True, kw_only=True)
class ScoredResponse:
    """A response with its text and its reward."""

    response: EngineResponse
    """What the engine made."""
    text: str
    """Its text."""
    reward: float
    """The score that counts."""


def score_responses(
    responses: Sequence[tuple[Prompt, EngineResponse]],
    *,
    decoder: TextDecoder,
    scorer: Scorer,
    require_end_token: bool,
) -> list[ScoredResponse]:
    """The responses with their rewards, in order, scored in one batch."""
    texts = [decoder.decode(response.token_ids) for _, response in responses]
    items = [
        ResponseToScore(sample_id=str(index), prompt=prompt.text, response=text, label=prompt.label)
        for index, ((prompt, _), text) in enumerate(zip(responses, texts, strict=True))
    ]
    scores = scorer.score_batch(items)
    return [
        ScoredResponse(
            response=response,
            text=text,
            reward=0.0 if require_end_token and response.finish_reason is not FinishReason.STOP else score.value,
        )
        for (_, response), text, score in zip(responses, texts, scores, strict=True)
    ]


def sample_of(scored: ScoredResponse, *, group_id: str, index: int) -> Sample:
    """The scored response as a sample of a group."""
    response = scored.response
    return Sample(
        sample_id=f"{group_id}/{index}",
        response_token_ids=response.token_ids,
        logprobs=response.logprobs,
        version_spans=response.version_spans,
        reward=scored.reward,
        finish_reason=response.finish_reason,
        num_verify_steps=response.num_verify_steps,
    )
