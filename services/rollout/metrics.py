"""What the rollout service measures."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram


class RolloutMetrics:
    """Metrics of one rollout service."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.groups = Counter(
            "rollout_groups_total", "Groups made, by what became of them.", ["outcome"], registry=registry
        )
        self.samples = Counter("rollout_samples_total", "Samples generated for training.", registry=registry)
        self.tokens = Counter("rollout_tokens_total", "Response tokens generated for training.", registry=registry)
        self.verify_steps = Counter(
            "rollout_verify_steps_total", "Verify steps of speculative decoding.", registry=registry
        )
        self.accept_length = Gauge(
            "rollout_accept_length_tokens", "Tokens per verify step of the last group.", registry=registry
        )
        self.policy_version = Gauge("rollout_policy_version_steps", "Step of the version served.", registry=registry)
        self.reward = Gauge("rollout_reward_mean", "Mean reward of the last group.", registry=registry)
        self.groups_in_flight = Gauge("rollout_groups_in_flight", "Groups being made.", registry=registry)
        self.group_seconds = Histogram(
            "rollout_group_seconds",
            "Seconds from lease to outcome of a group.",
            registry=registry,
            buckets=(0.1, 0.3, 1, 3, 10, 30, 100, 300),
        )
        self.generation_seconds = Counter(
            "rollout_generation_seconds_total", "Seconds with at least one group in flight.", registry=registry
        )
