"""What the reward service measures."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from services.common.records import Score
from services.reward.graders.specification import GRADER_NAMES, MIX_PREFIX, is_remote

_SECONDS = (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)


class RewardMetrics:
    """Metrics of one reward service."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.samples = Counter(
            "reward_samples_total",
            "Graded samples by grader, by the rule that decided, and by outcome: right, wrong or error.",
            ["grader", "rule", "outcome"],
            registry=registry,
        )
        self.grade_seconds = Histogram(
            "reward_grade_seconds", "Time of one sample in a worker.", ["grader"], registry=registry, buckets=_SECONDS
        )
        self.pending_items = Gauge("reward_pending_items", "Items that are queued or in a worker.", registry=registry)
        self.running_calls = Gauge("reward_running_calls", "Calls that wait for scores.", registry=registry)
        self.workers_lost = Counter(
            "reward_workers_lost_total",
            "Workers that were killed at the limit (timeout) or with their call (cancelled), or ended by themselves "
            "(died).",
            ["cause"],
            registry=registry,
        )
        self.all_zero_windows = Counter(
            "reward_all_zero_windows_total",
            "Windows of samples without a positive score although responses have boxed answers.",
            ["grader"],
            registry=registry,
        )
        self.is_all_zero = Gauge(
            "reward_is_all_zero", "1 when the last window was such a one, else 0.", ["grader"], registry=registry
        )

    def observe(self, *, grader: str, score: Score) -> None:
        """Counts one graded sample."""
        family = grader_family(grader)
        outcome = "error" if score.error else "right" if score.value > 0 else "wrong"
        self.samples.labels(grader=family, rule=score.rule, outcome=outcome).inc()
        self.grade_seconds.labels(grader=family).observe(score.seconds)


def grader_family(grader: str) -> str:
    """The grader's name as a label: the names of mixes, URLs and functions have no end."""
    if grader in GRADER_NAMES:
        return grader
    if grader.startswith(MIX_PREFIX):
        return "mix"
    return "remote" if is_remote(grader) else "custom"
