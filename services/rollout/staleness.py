"""Which rounds may be generated for, given the version the engine holds."""


def newest_open_round(*, version_step: int, max_lag_versions: int, num_rounds: int) -> int:
    """The newest round whose groups may start now; below 0 when none may.

    A group of round r trains the policy of version r. Tokens of version v are then r - v versions behind, so the round
    is open while r <= v + max_lag_versions. A run of num_rounds steps has no further rounds.
    """
    return min(version_step + max_lag_versions, num_rounds - 1)
