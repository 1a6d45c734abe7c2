"""Figures of the groups of one round. Pure."""

from collections import Counter
from collections.abc import Mapping, Sequence

from services.common.prompt_ledger import RoundState
from services.common.records import Group, Sample
from services.common.reply_figures import mean_response_tokens, samples_accept_length, thinking_rate
from services.trainer.reports import RoundSummary
from services.trainer.sample_selection import SelectedSamples


def summarize_round(
    groups: Sequence[Group],
    state: RoundState,
    texts: Sequence[str],
    selected: SelectedSamples,
    *,
    num_rejected: Mapping[str, int],
) -> RoundSummary:
    """The figures of a round, of its selected samples where they speak of samples.

    Args:
        num_rejected: selected samples that were rejected for their log-probabilities, by reason.
        texts: the responses of all samples as text, in the order of the groups and their samples.
    """
    members = [(group, sample) for group in groups for sample in group.samples]
    chosen = [members[index] for index in selected.indices]
    samples = [sample for _, sample in chosen]
    lags = [_lag(group, sample) for group, sample in chosen]
    return RoundSummary(
        mean_reward=state.reward_sum / state.num_samples if state.num_samples else 0.0,
        num_groups=len(groups),
        num_samples=len(samples) - sum(num_rejected.values()),
        num_samples_left_out={**selected.num_left_out, **num_rejected},
        num_response_tokens=sum(len(sample.response_token_ids) for sample in samples),
        num_groups_dropped=dict(Counter(state.num_dropped) + Counter(state.num_rejected)),
        accept_length=samples_accept_length(samples),
        thinking_rate=thinking_rate([texts[index] for index in selected.indices]),
        mean_response_tokens=mean_response_tokens(samples),
        mean_lag_steps=sum(lags) / len(lags) if lags else 0.0,
        max_lag_steps=max(lags, default=0),
    )


def _lag(group: Group, sample: Sample) -> int:
    oldest = sample.oldest_step
    return 0 if oldest is None else group.round - oldest
