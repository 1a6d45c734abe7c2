"""What the reward service measures."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from services.common.records import Score

_SECONDS = (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)


class RewardMetrics:
    """Metrics of one reward service."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.samples = Counter(
            "reward_samples_total",
            "Graded samples by grader and by the rule that decided.",
            ["grader", "rule"],
            registry=registry,
        )
        self.right_samples = Counter(
            "reward_right_samples_total", "Samples with a positive score.", ["grader"], registry=registry
        )
        self.grade_seconds = Histogram(
            "reward_grade_seconds", "Time of one sample in a worker.", ["grader"], registry=registry, buckets=_SECONDS
        )
        self.pending_items = Gauge("reward_pending_items", "Items that are queued or in a worker.", registry=registry)
        self.workers_lost = Counter(
            "reward_workers_lost_total",
            "Workers that were killed at the limit (timeout) or ended by themselves (died).",
            ["cause"],
            registry=registry,
        )

    def observe(self, *, grader: str, score: Score) -> None:
        """Counts one graded sample."""
        self.samples.labels(grader=grader, rule=score.rule).inc()
        self.grade_seconds.labels(grader=grader).observe(score.seconds)
        if score.value > 0:
            self.right_samples.labels(grader=grader).inc()
