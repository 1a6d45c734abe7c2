"""The records that services pass to each other, as plain frozen dataclasses.

Legend: T is the number of response tokens of a sample, P of prompt tokens, G of samples in a group.
"""

from dataclasses import dataclass
from enum import Enum


@dataclass(frozen=True, kw_only=True, order=True)
class PolicyVersion:
    """One state of the policy's weights."""

    run_id: str
    """The run it belongs to."""
    step: int
    """Training steps behind these weights; 0 is the state before the first step."""

    def __str__(self) -> str:
        return f"{self.run_id}@{self.step}"


@dataclass(frozen=True, kw_only=True)
class VersionSpan:
    """A stretch of consecutive response tokens made by one version."""

    step: int
    """Step of the version."""
    num_tokens: int
    """Length of the stretch in tokens, at least 1."""


class FinishReason(Enum):
    """Why the engine stopped a response."""

    STOP = "stop"
    LENGTH = "length"
    ABORTED = "aborted"


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One response with what is needed to train on it."""

    sample_id: str
    """Unique within the run: "<group id>/<index>"."""
    response_token_ids: tuple[int, ...]
    """[T] ids as the engine made them, end token included."""
    logprobs: tuple[float, ...]
    """[T] natural log-probabilities under the engine at the sampling temperature."""
    version_spans: tuple[VersionSpan, ...]
    """The versions that made the tokens, in order; token counts add up to T."""
    reward: float
    """The grader's score."""
    finish_reason: FinishReason
    """Why the engine stopped."""
    num_verify_steps: int
    """Target forward passes that verified draft tokens; 0 without speculation."""

    @property
    def oldest_step(self) -> int | None:
        """Step of the oldest version that made a token; None for an empty response."""
        return min((span.step for span in self.version_spans), default=None)


@dataclass(frozen=True, kw_only=True)
class Group:
    """A prompt with all its samples: the unit of queuing, dropping and acknowledgement."""

    group_id: str
    """Unique within the run: "<run id>/<round>/<position>"."""
    round: int
    """The training step it is meant for, counted from 0."""
    position: int
    """Position of the prompt in the run's endless prompt order."""
    prompt_token_ids: tuple[int, ...]
    """[P] ids of the prompt, template included."""
    samples: tuple[Sample, ...]
    """[G] in generation order."""


@dataclass(frozen=True, kw_only=True)
class Prompt:
    """One row of the data: what to ask and the right answer."""

    text: str
    """The prompt as the model reads it, template included."""
    token_ids: tuple[int, ...]
    """[P] ids of the text."""
    label: str
    """The right answer, for the grader."""
    source: str
    """Where it comes from, for messages: "file.jsonl:17" or "addition:47+85"."""


@dataclass(frozen=True, kw_only=True)
class Score:
    """A grader's judgement on one response."""

    value: float
    """The score."""
    extracted: str
    """The answer found in the response; empty if none was."""
    rule: str
    """The rule that decided, such as numeric, symbolic, no_answer, bad_label, timeout or error; see reward.proto."""
    seconds: float
    """Time the grader took."""
    error: str
    """What went wrong while grading; empty if nothing did."""


def group_id(*, run_id: str, round_: int, position: int) -> str:
    """The stable id of a group; generating the same lease again gives the same id."""
    return f"{run_id}/{round_}/{position}"
