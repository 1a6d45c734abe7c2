"""Figures of the optimizer steps of one round, from what the ranks answered. Pure."""

from collections.abc import Mapping, Sequence

from services.trainer.reports import UpdateSummary


def summarize_updates(replies: Sequence[Mapping[str, float]]) -> UpdateSummary:
    """The figures of a round; all zero when no update was done.

    Args:
        replies: RoundTraining.train's figures of each rank; all but max_mismatch are the same on every rank.
    """
    figures = replies[0]
    num_updates = figures.get("num_updates", 0.0)
    num_tokens = figures.get("num_tokens", 0.0)
    if not num_updates or not num_tokens:
        return UpdateSummary()
    return UpdateSummary(
        policy_loss=figures["policy_loss"] / num_tokens,
        mtp_loss=figures["mtp_loss"] / num_updates,
        gradient_norm=figures["gradient_norm"] / num_updates,
        clip_fraction=figures["clip_fraction"] / num_tokens,
        logprob_mismatch_mean=figures["logprob_mismatch"] / num_tokens,
        logprob_mismatch_max=max(reply["max_mismatch"] for reply in replies),
        importance_weight_mean=figures["importance_weight"] / num_tokens,
        entropy=figures["entropy"] / num_tokens,
    )
