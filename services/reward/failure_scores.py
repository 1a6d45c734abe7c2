"""What a sample is worth that could not be graded."""

_GRADERS_FROM_MINUS_ONE = "dapo"


def failure_value(grader: str) -> float:
    """The lowest score of the grader: -1 for the dapo family, which scores -1 or 1, else 0."""
    return -1.0 if grader.startswith(_GRADERS_FROM_MINUS_ONE) else 0.0
