"""What the trainer measures."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from services.trainer.reports import StepReport

_SECONDS = (0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300, 1000)


class TrainerMetrics:
    """Metrics of rank 0."""

    def __init__(self, registry: CollectorRegistry) -> None:
        gauge, self._registry = self._gauge, registry
        self.steps = Counter("trainer_steps_total", "Training steps done.", registry=registry)
        self.samples = Counter("trainer_samples_total", "Samples trained on.", registry=registry)
        self.tokens = Counter("trainer_tokens_total", "Response tokens trained on.", registry=registry)
        self.phase_seconds = Histogram(
            "trainer_phase_seconds",
            "Seconds of a step by phase: wait, train, sync.",
            ["phase"],
            registry=registry,
            buckets=_SECONDS,
        )
        self.policy_version = gauge("trainer_policy_version_steps", "Step of the last committed version.")
        self.reward = gauge("trainer_reward_mean", "Mean reward of the last round.")
        self.held_out_accuracy = gauge("trainer_held_out_accuracy_ratio", "Last held-out mean reward.")
        self.gradient_norm = gauge("trainer_gradient_norm", "Norm before clipping of the last step.")
        self.clip_fraction = gauge("trainer_clip_fraction_ratio", "Share of clipped tokens of the last step.")
        self.entropy = gauge("trainer_entropy_nats", "Mean entropy of the last step.")
        self.kl = gauge("trainer_kl_nats", "Mean divergence from the reference of the last step.")
        self.importance_cut = gauge(
            "trainer_importance_cut_ratio", "Share of tokens of the last step with an importance ratio out of bounds."
        )
        self.rejected_tokens = gauge("trainer_rejected_tokens_ratio", "Share of tokens rejected from the last step.")
        self.sequence_masked = gauge(
            "trainer_sequence_masked_ratio", "Share of tokens of the last step masked with their sequence."
        )
        self.mismatch = gauge("trainer_logprob_mismatch_mean", "Mean difference of trainer and engine log-probability.")
        self.accept_length = gauge("trainer_accept_length_tokens", "Tokens per verify step of the trained samples.")
        self.lag = gauge("trainer_lag_steps", "Largest lag of the last round.")
        self.queue_depth = gauge("trainer_queue_depth_groups", "Groups in the stream.")
        self.groups_dropped = Counter(
            "trainer_groups_dropped_total", "Groups dropped or rejected, by reason.", ["reason"], registry=registry
        )
        self.samples_left_out = Counter(
            "trainer_samples_left_out_total",
            "Samples of trained groups that were not trained on, by reason.",
            ["reason"],
            registry=registry,
        )

    def observe(self, report: StepReport) -> None:
        """Takes over one step's report."""
        self.steps.inc()
        self.samples.inc(report.round.num_samples)
        self.tokens.inc(report.round.num_response_tokens)
        self.phase_seconds.labels(phase="wait").observe(report.wait_seconds)
        self.phase_seconds.labels(phase="train").observe(report.train_seconds)
        self.phase_seconds.labels(phase="sync").observe(report.publish.sync_seconds)
        self.policy_version.set(report.step + 1)
        self.reward.set(report.round.mean_reward)
        if report.held_out_accuracy is not None:
            self.held_out_accuracy.set(report.held_out_accuracy)
        self.gradient_norm.set(report.update.gradient_norm)
        self.clip_fraction.set(report.update.clip_fraction)
        self.entropy.set(report.update.entropy)
        self.kl.set(report.update.kl)
        self.importance_cut.set(report.update.importance_cut_fraction)
        self.rejected_tokens.set(report.update.rejected_token_fraction)
        self.sequence_masked.set(report.update.sequence_masked_fraction)
        self.mismatch.set(report.update.logprob_mismatch_mean)
        self.accept_length.set(report.round.accept_length)
        self.lag.set(report.round.max_lag_steps)
        self.queue_depth.set(report.queue_depth)
        for reason, count in report.round.num_groups_dropped.items():
            self.groups_dropped.labels(reason=reason).inc(count)
        for reason, count in report.round.num_samples_left_out.items():
            self.samples_left_out.labels(reason=reason).inc(count)

    def _gauge(self, name: str, documentation: str) -> Gauge:
        return Gauge(name, documentation, registry=self._registry)
