"""Whether a run learned, by a rule that chance does not pass. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from math import sqrt

from services.cli.records import Evaluation, StepReport

MIN_RISE = 0.05
"""Least rise of held-out accuracy that counts as learning."""
MIN_STANDARD_ERRORS = 3.0
"""Least rise in standard errors of the difference: by chance alone one run in 700 passes it."""


class Outcome(Enum):
    """How a run ended."""

    LEARNED = "learned"
    COMPLETED = "completed"
    NOT_LEARNED = "not learned"


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The judgement on a run with its reason."""

    outcome: Outcome
    """How it ended."""
    reason: str
    """Why, in one line."""

    @property
    def exit_code(self) -> int:
        """0 unless a run that has to learn did not."""
        return 1 if self.outcome is Outcome.NOT_LEARNED else 0


def judge(
    before: Evaluation,
    after: Evaluation,
    reports: Sequence[StepReport],
    *,
    num_samples: int,
    must_learn: bool,
) -> Verdict:
    """The verdict.

    A run on the built-in task must learn: its held-out accuracy must rise by MIN_RISE and by MIN_STANDARD_ERRORS
    standard errors. A run on a user's prompts has done its work when all steps are done, learned or not.

    Args:
        num_samples: samples generated for training.
    """
    rise = after.mean_reward - before.mean_reward
    figures = f"held-out accuracy {before.mean_reward:.3f} to {after.mean_reward:.3f}"
    if all(report.mean_reward <= 0 for report in reports):
        outcome = Outcome.NOT_LEARNED if must_learn else Outcome.COMPLETED
        reason = (
            f"no reward was above zero in {num_samples} samples: the model cannot solve these prompts; "
            "nothing was learned"
        )
    elif rise >= MIN_RISE and rise > MIN_STANDARD_ERRORS * standard_error(before, after):
        outcome, reason = Outcome.LEARNED, figures
    else:
        outcome = Outcome.NOT_LEARNED if must_learn else Outcome.COMPLETED
        wanted = max(MIN_RISE, MIN_STANDARD_ERRORS * standard_error(before, after))
        reason = f"{figures}: a rise of {rise:.3f}; wanted at least {wanted:.3f} to call it learning"
    return Verdict(outcome=outcome, reason=reason)


def standard_error(before: Evaluation, after: Evaluation) -> float:
    """Standard error of the difference of two proportions, pooled."""
    total = before.num_prompts + after.num_prompts
    if not before.num_prompts or not after.num_prompts:
        return 0.0
    pooled = (before.mean_reward * before.num_prompts + after.mean_reward * after.num_prompts) / total
    pooled = min(1.0, max(0.0, pooled))
    return sqrt(pooled * (1 - pooled) * (1 / before.num_prompts + 1 / after.num_prompts))
