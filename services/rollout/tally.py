"""Counts what the generation loop does, for GetStatus and for Prometheus alike."""

import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from services.common.accept_length import accept_length
from services.rollout.metrics import RolloutMetrics
from services.rollout.scoring import ScoredResponse

ACCEPTED = "accepted"
SURPLUS = "surplus"
"""Not queued, because the lease was no longer held: its round was full, or another worker makes the group. A group
that was queued before this showed is LATE."""


@dataclass(frozen=True, kw_only=True)
class TallyFigures:
    """The counts at one moment, since the process started."""

    num_groups_pushed: int
    """Groups accepted."""
    num_groups_dropped: dict[str, int]
    """Groups dropped, by reason."""
    num_samples: int
    """Samples generated."""
    num_tokens: int
    """Response tokens generated."""
    generation_seconds: float
    """Seconds with at least one group in flight."""
    accept_length: float
    """Tokens per verify step; 0 without speculation."""


class Tally:
    """Thread-safe counts of one rollout service."""

    def __init__(self, metrics: RolloutMetrics) -> None:
        self._metrics = metrics
        self._lock = threading.Lock()
        self._outcomes: Counter[str] = Counter()
        self._num_samples = 0
        self._num_tokens = 0
        self._num_verify_steps = 0
        self._busy_seconds = 0.0

    def add_responses(self, scored: Sequence[ScoredResponse]) -> None:
        """Counts the responses of one group."""
        num_tokens = sum(len(item.response.token_ids) for item in scored)
        num_verify_steps = sum(item.response.num_verify_steps for item in scored)
        with self._lock:
            self._num_samples += len(scored)
            self._num_tokens += num_tokens
            self._num_verify_steps += num_verify_steps
        self._metrics.samples.inc(len(scored))
        self._metrics.tokens.inc(num_tokens)
        self._metrics.verify_steps.inc(num_verify_steps)
        self._metrics.reward.set(sum(item.reward for item in scored) / len(scored))
        self._metrics.accept_length.set(
            accept_length(num_tokens=num_tokens, num_responses=len(scored), num_verify_steps=num_verify_steps)
        )

    def add_group(self, outcome: str, *, seconds: float) -> None:
        """Counts one settled group."""
        with self._lock:
            self._outcomes[outcome] += 1
        self._metrics.groups.labels(outcome=outcome).inc()
        self._metrics.group_seconds.observe(seconds)

    def add_surplus(self, num_groups: int) -> None:
        """Counts groups that were stopped while they were made."""
        with self._lock:
            self._outcomes[SURPLUS] += num_groups
        self._metrics.groups.labels(outcome=SURPLUS).inc(num_groups)

    def add_busy_seconds(self, seconds: float) -> None:
        """Counts time with at least one group in flight."""
        with self._lock:
            self._busy_seconds += seconds
        self._metrics.generation_seconds.inc(seconds)

    def set_groups_in_flight(self, count: int) -> None:
        """Sets the gauge."""
        self._metrics.groups_in_flight.set(count)

    def figures(self) -> TallyFigures:
        """The counts now."""
        with self._lock:
            return TallyFigures(
                num_groups_pushed=self._outcomes[ACCEPTED],
                num_groups_dropped={name: n for name, n in self._outcomes.items() if name != ACCEPTED},
                num_samples=self._num_samples,
                num_tokens=self._num_tokens,
                generation_seconds=self._busy_seconds,
                accept_length=accept_length(
                    num_tokens=self._num_tokens,
                    num_responses=self._num_samples,
                    num_verify_steps=self._num_verify_steps,
                ),
            )
