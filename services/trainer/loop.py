"""The training loop on rank 0: one step is collect, train, publish, checkpoint, evaluate, report."""

import logging
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from services.common.errors import AbortedError
from services.common.records import Group, PolicyVersion
from services.common.sample_queue import QueuedGroup, SampleQueue
from services.trainer.checkpoint_store import CheckpointStore
from services.trainer.claiming import CollectedRound, RoundCollector
from services.trainer.metrics import TrainerMetrics
from services.trainer.orders import SavePolicy, TrainRound
from services.trainer.publishing import Publisher
from services.trainer.rank_group import RankGroup
from services.trainer.reports import Board, Phase, PublishSummary, StepReport
from services.trainer.round_summary import summarize_round
from services.trainer.sample_selection import SampleSelection
from services.trainer.update_summary import summarize_updates

logger = logging.getLogger(__name__)

_WORK_POLL_SECONDS = 0.5


class HeldOutEvaluation(Protocol):
    """Evaluates the committed version."""

    def held_out_accuracy(self, *, num_prompts: int) -> float:
        """Mean reward over held-out prompts."""
        ...


class TextDecoder(Protocol):
    """The part of a tokenizer that reports need."""

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of the ids, special tokens included."""
        ...


class TrainingLoop:
    """Runs steps until the board's goal is reached, then waits for a new one, until it is told to stop."""

    def __init__(
        self,
        *,
        version_run_id: str,
        step: int,
        ranks: RankGroup,
        publisher: Publisher,
        collector: RoundCollector,
        queue: SampleQueue,
        checkpoints: CheckpointStore,
        checkpoint_every_steps: int,
        evaluation: HeldOutEvaluation,
        evaluate_every_steps: int,
        evaluation_prompts: int,
        selection: SampleSelection,
        decoder: TextDecoder,
        board: Board,
        metrics: TrainerMetrics,
        should_stop: Callable[[], bool],
    ) -> None:
        self._version_run_id = version_run_id
        self._step = step
        self._ranks = ranks
        self._publisher = publisher
        self._collector = collector
        self._queue = queue
        self._checkpoints = checkpoints
        self._checkpoint_every_steps = checkpoint_every_steps
        self._evaluation = evaluation
        self._evaluate_every_steps = evaluate_every_steps
        self._evaluation_prompts = evaluation_prompts
        self._selection = selection
        self._decoder = decoder
        self._board = board
        self._metrics = metrics
        self._should_stop = should_stop
        self._unsaved: list[QueuedGroup] = []

    def run(self) -> None:
        """Publishes the policy as it is, then does steps as the goal asks, until should_stop.

        Raises:
            AbortedError: a version could not be committed.
            DeadlineError: a round did not arrive in time.
            ShortRoundError: a round has too few groups.
            InvalidInputError: a sample is too long to train on.
        """
        self._collector.open(step=self._step)
        self._publish()
        while not self._should_stop():
            self._board.status.phase = Phase.WAITING
            has_step, wants_checkpoint = self._board.wait_for_work(step=self._step, timeout_seconds=_WORK_POLL_SECONDS)
            if wants_checkpoint:
                self._save()
            if has_step:
                self._run_step()

    def _run_step(self) -> None:
        started = time.monotonic()
        collected = self._collector.collect(self._step)
        if collected is None:
            return
        collected_at = time.monotonic()
        groups = [queued.group for queued in collected.queued]
        selected = self._selection.select(groups)
        self._board.status.phase = Phase.TRAINING
        replies = self._ranks.carry_out(TrainRound(step=self._step, groups=tuple(groups)))
        trained_at = time.monotonic()
        self._unsaved += collected.queued
        self._step += 1
        publish = self._publish()
        self._save_if_due()
        update = summarize_updates([reply.figures for reply in replies])
        report = StepReport(
            step=self._step - 1,
            round=summarize_round(
                groups, collected.state, self._texts(groups), selected, num_rejected=update.num_samples_rejected
            ),
            update=update,
            publish=publish,
            wait_seconds=collected_at - started,
            train_seconds=trained_at - collected_at,
            held_out_accuracy=self._evaluate_if_due(),
            queue_depth=self._queue.depth(),
        )
        self._tell(report, collected)

    def _publish(self) -> PublishSummary:
        self._board.status.phase = Phase.PUBLISHING
        version = PolicyVersion(run_id=self._version_run_id, step=self._step)
        publish = self._publisher.publish(version)
        status = self._board.status
        status.version = version
        status.num_versions_aborted += publish.num_aborted
        status.num_versions_committed += int(self._step > 0 and publish.is_committed)
        return publish

    def _save_if_due(self) -> None:
        is_last = self._step >= self._board.status.target_step
        if is_last or self._step % self._checkpoint_every_steps == 0:
            self._save()

    def _save(self) -> None:
        """Saves, and only then acknowledges the groups whose effect the checkpoint holds."""
        path = self._checkpoints.path(self._step)
        if not path.is_dir():
            self._ranks.carry_out(SavePolicy(folder=path, with_optimizer=True))
            self._checkpoints.prune()
        self._collector.acknowledge(self._unsaved, rounds_before=self._step)
        self._unsaved = []
        self._board.checkpoint_saved(str(path))

    def _evaluate_if_due(self) -> float | None:
        if not self._evaluate_every_steps or self._step % self._evaluate_every_steps:
            return None
        try:
            return self._evaluation.held_out_accuracy(num_prompts=self._evaluation_prompts)
        except AbortedError as error:
            logger.warning("evaluation given up", extra={"reason": str(error)})
            return None

    def _texts(self, groups: Sequence[Group]) -> list[str]:
        return [self._decoder.decode(sample.response_token_ids) for group in groups for sample in group.samples]

    def _tell(self, report: StepReport, collected: CollectedRound) -> None:
        self._metrics.observe(report)
        self._board.add_report(report)
        logger.info(
            "step done",
            extra={
                "step": report.step,
                "mean_reward": round(report.round.mean_reward, 4),
                "num_groups": report.round.num_groups,
                "num_spent": collected.state.num_spent,
                "seconds": round(report.wait_seconds + report.train_seconds + report.publish.sync_seconds, 2),
            },
        )
