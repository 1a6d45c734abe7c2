"""What the weights service measures."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from services.weights.published import PublishOutcome

_SECONDS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)


class WeightsMetrics:
    """Metrics of the weights service."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.versions = Counter(
            "weights_versions_total", "Published versions, by what became of them.", ["state"], registry=registry
        )
        self.publish_seconds = Histogram(
            "weights_publish_seconds", "From announcement to outcome.", registry=registry, buckets=_SECONDS
        )
        self.phase_seconds = Histogram(
            "weights_phase_seconds", "Duration of a phase.", ["phase"], registry=registry, buckets=_SECONDS
        )
        self.pause_seconds = Histogram(
            "weights_pause_seconds", "Pause of an engine in a commit.", registry=registry, buckets=_SECONDS
        )
        self.plan_seconds = Histogram(
            "weights_plan_seconds", "Time to make a plan.", registry=registry, buckets=_SECONDS
        )
        self.received_bytes = Counter(
            "weights_received_bytes_total", "Bytes that engines received and verified.", registry=registry
        )
        self.quarantines = Counter(
            "weights_quarantines_total", "Engines quarantined, by phase.", ["phase"], registry=registry
        )
        self.catch_ups = Counter(
            "weights_catch_ups_total",
            "Registrations by whether the committed version was brought: fetched, waiting or failed.",
            ["outcome"],
            registry=registry,
        )
        self.engines = Gauge("weights_engines_count", "Engines by standing.", ["standing"], registry=registry)

    def observe_phase(self, phase: str, seconds: float) -> None:
        """Records the duration of a phase."""
        self.phase_seconds.labels(phase=phase).observe(seconds)

    def observe_outcome(self, outcome: PublishOutcome) -> None:
        """Records a version's end."""
        self.versions.labels(state=outcome.state.value).inc()
        self.publish_seconds.observe(outcome.seconds)
        for engine in outcome.engines:
            self.received_bytes.inc(engine.num_bytes)
            if engine.are_digests_equal:
                self.pause_seconds.observe(engine.pause_seconds)

    def observe_engines(self, *, num_live: int, num_quarantined: int) -> None:
        """Records how many engines take part and how many do not."""
        self.engines.labels(standing="live").set(num_live)
        self.engines.labels(standing="quarantined").set(num_quarantined)
