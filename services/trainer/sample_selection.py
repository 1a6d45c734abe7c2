"""Which samples of a round are trained on, and why the others are left out. Pure."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from services.common.errors import InvalidInputError
from services.common.records import FinishReason, Group, Sample

OVERLONG = "overlong"
"""Prompt and response have more tokens than a micro-batch may."""
TRUNCATED = "truncated"
"""Cut at the token limit, and the recipe filters such samples."""


@dataclass(frozen=True, kw_only=True)
class SelectedSamples:
    """The samples to train on."""

    indices: tuple[int, ...]
    """Ascending, into the samples of all groups in order."""
    num_left_out: Mapping[str, int] = field(default_factory=dict)
    """Samples left out, by reason; a sample counts once."""


@dataclass(frozen=True, kw_only=True)
class SampleSelection:
    """The rules of a recipe.

    A sample left out takes part in no forward pass, loss or denominator. It was in its group when advantages were
    taken, and it stays there: the rewards of its siblings are measured against its reward, too.
    """

    max_tokens: int
    """Most tokens of prompt and response together."""
    drop_overlong: bool
    """Leave longer samples out; otherwise one of them is an error."""
    leave_out_truncated: bool
    """Leave out samples that were cut at the token limit (overlong filtering, arXiv 2503.14476, section 3.4)."""

    def select(self, groups: Sequence[Group]) -> SelectedSamples:
        """The samples of the groups to train on; the same on every rank.

        Raises:
            InvalidInputError: a sample is longer than max_tokens and may not be left out; it is named.
        """
        samples = [(group, sample) for group in groups for sample in group.samples]
        reasons = [self._reason(group, sample) for group, sample in samples]
        return SelectedSamples(
            indices=tuple(index for index, reason in enumerate(reasons) if reason is None),
            num_left_out=dict(Counter(reason for reason in reasons if reason is not None)),
        )

    def _reason(self, group: Group, sample: Sample) -> str | None:
        if self.leave_out_truncated and sample.finish_reason is FinishReason.LENGTH:
            return TRUNCATED
        num_prompt, num_response = len(group.prompt_token_ids), len(sample.response_token_ids)
        if num_prompt + num_response <= self.max_tokens:
            return None
        if self.drop_overlong:
            return OVERLONG
        raise InvalidInputError(
            f"sample {sample.sample_id} has {num_prompt + num_response} tokens ({num_prompt} prompt, {num_response} "
            f"response), more than trainer.max_tokens_per_rank {self.max_tokens}; raise it, lower "
            'rollout.sampling.max_new_tokens, or set trainer.overlong_samples="drop"'
        )
