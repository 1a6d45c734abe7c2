"""One session of a run with its processes: start, warm start, evaluate, train, evaluate, judge."""

import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from services.cli.records import Evaluation, ExampleReply, PassRate, RolloutStatus, StepReport, TrainerStatus
from services.cli.smoke.evidence import EvidenceValue, PhaseSeconds, RunFigures, build_evidence
from services.cli.smoke.launch import Cluster, RunPlan, require_trainer_alive
from services.cli.smoke.learning_curve import draw_learning_curve
from services.cli.smoke.verdict import Verdict, judge
from services.cli.smoke.view import RunView
from services.common.config.loading import config_digest
from services.common.deployment import Deployment
from services.common.errors import FurlongError, InvalidInputError
from services.common.redis_connection import open_redis
from services.common.redis_sample_queue import RedisSampleQueue

NUM_EXAMPLES = 3
_EVALUATION_SECONDS = 1800.0
_STATUS_SECONDS = 2.0


@dataclass(frozen=True, kw_only=True)
class RunResult:
    """What a finished run shows."""

    figures: RunFigures
    """Everything measured."""
    verdict: Verdict
    """Whether it learned."""


class Session:
    """Drives a started or resumed run to its goal."""

    def __init__(self, plan: RunPlan, cluster: Cluster, view: RunView, *, install_seconds: float) -> None:
        self._plan = plan
        self._recipe = plan.recipe
        self._cluster = cluster
        self._view = view
        self._install_seconds = install_seconds
        self._start_seconds = 0.0
        self._warm_start_seconds = 0.0
        self._rl_seconds = 0.0
        self._figures: RunFigures | None = None
        self._reported_errors: set[str] = set()

    def run(self) -> RunResult:
        """Everything from the first process to the verdict; the processes still run when it returns.

        Raises:
            FurlongError: the run failed.
        """
        began = time.monotonic()
        deployment = self._cluster.start()
        queue = self._open_queue(deployment)
        num_queued_at_start = queue.depth()
        self._cluster.wait_for_engines()
        self._start_seconds = time.monotonic() - began
        trainer = self._cluster.wait_for_trainer(on_status=self._show_trainer)
        self._warm_start_seconds = trainer.warm_start_seconds
        first_step = trainer.committed_step or 0
        kept = self._plan.folder.keep_steps_below(first_step)
        before = self._baseline(first_step)
        reports = self._train(first_step)
        after = self._evaluate("after")
        # The trainer may have refused groups after its last report, so the queue is read last.
        trainer_status = self._trainer_status()
        figures = RunFigures(
            before=before,
            after=after,
            reports=[*kept, *reports],
            session_reports=reports,
            trainer=trainer_status,
            rollouts=self._rollout_statuses(),
            num_queued_at_start=num_queued_at_start * self._recipe.rollout.samples_per_prompt,
            num_queued_at_end=queue.depth() * self._recipe.rollout.samples_per_prompt,
            samples_per_prompt=self._recipe.rollout.samples_per_prompt,
        )
        return self._conclude(figures)

    def evidence(self, total_seconds: float) -> dict[str, EvidenceValue]:
        """The evidence of the finished session."""
        assert self._figures is not None, "run() comes first"
        seconds = PhaseSeconds(
            install=self._install_seconds,
            start=self._start_seconds,
            warm_start=self._warm_start_seconds,
            rl=self._rl_seconds,
            total=total_seconds,
        )
        return build_evidence(
            self._figures,
            seconds=seconds,
            config_digest=config_digest(self._recipe),
            seed=self._recipe.run.seed,
        )

    def _open_queue(self, deployment: Deployment) -> RedisSampleQueue:
        client = open_redis(deployment.redis_url)
        return RedisSampleQueue(client, run_id=deployment.run_id, max_groups=self._recipe.redis.max_queued_groups)

    def _show_trainer(self, status: TrainerStatus) -> None:
        text = f"trainer {status.phase.value}"
        if status.num_warm_start_steps and status.warm_start_step < status.num_warm_start_steps:
            text += f": step {status.warm_start_step} of {status.num_warm_start_steps}"
        self._view.progress(text)

    def _baseline(self, first_step: int) -> Evaluation:
        """The evaluation before the run's first step; a resumed run has it on file."""
        path = self._plan.folder.baseline_path
        if first_step and path.exists():
            return _evaluation_from_json(path.read_text())
        before = self._evaluate("before")
        path.write_text(json.dumps(asdict(before), indent=2) + "\n")
        return before

    def _evaluate(self, when: str) -> Evaluation:
        # All of the built-in task's held-out prompts; of a user's file, which may hold any number, the recipe's share.
        is_builtin = not self._recipe.data.prompt_data
        num_prompts = 0 if is_builtin else self._recipe.rollout.evaluation.num_prompts
        self._view.progress(f"evaluating held-out prompts {when} training")
        evaluation = self._cluster.supervisor.run(
            lambda: self._cluster.rollouts[0].evaluate(
                num_prompts=num_prompts, num_examples=NUM_EXAMPLES, timeout_seconds=_EVALUATION_SECONDS
            )
        )
        self._view.say(
            f"held-out accuracy {when} training: {evaluation.mean_reward:.3f} "
            f"({evaluation.num_prompts} prompts; {evaluation.thinking_rate:.0%} of replies think)"
        )
        return evaluation

    def _train(self, first_step: int) -> list[StepReport]:
        """The reports of first_step up to the goal."""
        goal = self._recipe.run.steps
        if first_step >= goal:
            return []
        began = last = time.monotonic()
        last_generated = self._num_tokens_generated()
        self._cluster.supervisor.run(lambda: self._cluster.trainer.train(target_step=goal))
        for rollout in self._cluster.rollouts:
            self._cluster.supervisor.run(rollout.start_generation)
        self._view.progress(f"step {first_step + 1} of {goal}")
        reports: list[StepReport] = []
        watched = self._cluster.trainer.watch_steps(first_step=first_step)
        for report in self._cluster.supervisor.stream(watched, every_seconds=_STATUS_SECONDS, do=self._look):
            reports.append(report)
            self._plan.folder.append_step(report)
            now, generated = time.monotonic(), self._num_tokens_generated()
            rate = (generated - last_generated) / max(now - last, 1e-3)
            self._view.step(report, num_steps=goal, tokens_per_second=rate)
            last, last_generated = now, generated
            if report.step + 1 >= goal:
                break
        self._rl_seconds = time.monotonic() - began
        if not reports or reports[-1].step + 1 < goal:
            self._look()
            raise FurlongError(
                f"the trainer's reports ended after {len(reports)} of {goal - first_step} steps; see logs/trainer-0.log"
            )
        return reports

    def _num_tokens_generated(self) -> int:
        return sum(status.num_tokens_generated for status in self._rollout_statuses())

    def _look(self) -> None:
        """Called every other second of training: says what services complain about, and ends with a failed trainer."""
        require_trainer_alive(self._trainer_status())
        for index, status in enumerate(self._rollout_statuses()):
            complaint = f"rollout-{index}: {status.last_error}"
            if status.last_error and complaint not in self._reported_errors:
                self._reported_errors.add(complaint)
                self._view.say(complaint)

    def _trainer_status(self) -> TrainerStatus:
        status = self._cluster.supervisor.run(self._cluster.trainer.status)
        if status is None:
            raise FurlongError("the trainer does not answer any more; see logs/trainer-0.log")
        return status

    def _rollout_statuses(self) -> Sequence[RolloutStatus]:
        return [self._cluster.supervisor.run(rollout.status) for rollout in self._cluster.rollouts]

    def _conclude(self, figures: RunFigures) -> RunResult:
        self._figures = figures
        verdict = judge(
            figures.before,
            figures.after,
            figures.reports,
            num_samples=sum(status.num_samples_generated for status in figures.rollouts),
            must_learn=self._recipe.model.preset == "tiny-task" and not self._recipe.data.prompt_data,
        )
        draw_learning_curve(
            self._plan.folder.curve_path,
            before=figures.before,
            after=figures.after,
            reports=figures.reports,
            title=f"{self._recipe.run.name}: {verdict.outcome.value}",
        )
        return RunResult(figures=figures, verdict=verdict)


def _evaluation_from_json(text: str) -> Evaluation:
    try:
        table = json.loads(text)
        examples = tuple(ExampleReply(**example) for example in table.pop("examples"))
        pass_rates = tuple(PassRate(**rate) for rate in table.pop("pass_rates"))
        return Evaluation(**table, examples=examples, pass_rates=pass_rates)
    except (ValueError, TypeError, KeyError) as error:
        raise InvalidInputError(f"baseline.json is no evaluation ({error}); start a new run") from error
