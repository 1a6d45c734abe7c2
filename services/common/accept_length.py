"""The one definition of accept length that all services report."""


def accept_length(*, num_tokens: int, num_responses: int, num_verify_steps: int) -> float:
    """Mean tokens gained per verify step; 0 without speculation.

    The first token of a response comes from the prefill, not from a verify step, so it does not count. With one draft
    token the value lies between 1 and 2.
    """
    if num_verify_steps == 0:
        return 0.0
    return (num_tokens - num_responses) / num_verify_steps
