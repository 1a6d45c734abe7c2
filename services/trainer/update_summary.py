"""Figures of the optimizer steps of one round, from what the ranks answered. Pure."""

from collections.abc import Mapping, Sequence

from services.trainer.prepared_update import rejected_name
from services.trainer.reports import UpdateSummary
from services.trainer.screening import REASONS


def summarize_updates(replies: Sequence[Mapping[str, float]]) -> UpdateSummary:
    """The figures of a round; zero when no update was done.

    Args:
        replies: RoundTraining.train's figures of each rank; all but max_mismatch are the same on every rank.
    """
    figures = replies[0]
    num_updates = figures.get("num_updates", 0.0)
    rejected = {reason: round(figures.get(rejected_name(reason), 0.0)) for reason in REASONS}
    num_samples_rejected = {reason: count for reason, count in rejected.items() if count}
    num_tokens = figures.get("num_tokens", 0.0)
    if not num_updates or not num_tokens:
        return UpdateSummary(num_samples_rejected=num_samples_rejected)
    num_tokens_rejected = figures["num_tokens_rejected"]
    return UpdateSummary(
        policy_loss=figures["policy_loss"] / figures["global_count"],
        mtp_loss=figures["mtp_loss"] / num_updates,
        gradient_norm=figures["gradient_norm"] / num_updates,
        clip_fraction=figures["clip_fraction"] / num_tokens,
        logprob_mismatch_mean=figures["logprob_mismatch"] / num_tokens,
        logprob_mismatch_max=max(reply["max_mismatch"] for reply in replies),
        importance_weight_mean=figures["importance_weight"] / num_tokens,
        importance_cut_fraction=figures["importance_cut"] / num_tokens,
        rejected_token_fraction=num_tokens_rejected / (num_tokens + num_tokens_rejected),
        sequence_masked_fraction=figures.get("sequence_masked", 0.0) / num_tokens,
        entropy=figures["entropy"] / num_tokens,
        kl=figures.get("kl", 0.0) / num_tokens,
        num_samples_rejected=num_samples_rejected,
    )
