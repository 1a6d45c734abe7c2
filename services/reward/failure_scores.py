"""What a sample is worth that could not be graded."""

from services.reward.scorer import Rule

FAILURE_RULES = frozenset((Rule.BAD_LABEL, Rule.TIMEOUT, Rule.ERROR))
"""Rules that say that nothing was judged."""


def failure_value(grader: str) -> float:
    """The lowest score of the grader: -1 for the dapo family, which scores -1 or 1, else 0."""
    return -1.0 if grader == "dapo" or grader.startswith("dapo:") else 0.0
