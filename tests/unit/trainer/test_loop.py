"""The training loop over fakes: steps, publications, checkpoints, resumes, and nothing lost."""

import threading
from pathlib import Path

import pytest
import torch
from prometheus_client import CollectorRegistry

from services.common.config.algorithm import DapoConfig, ImportanceConfig
from services.common.config.trainer import OptimizerConfig, TrainerConfig
from services.common.errors import AbortedError, DeadlineError, StateConflictError
from services.common.memory_prompt_ledger import MemoryPromptLedger
from services.common.memory_sample_queue import MemoryQueueState, MemorySampleQueue
from services.common.records import FinishReason, Group, PolicyVersion, Sample, VersionSpan, group_id
from services.trainer.checkpoint_store import CheckpointStore
from services.trainer.claiming import RoundCollector
from services.trainer.fake_policy import FakePolicy
from services.trainer.loop import TrainingLoop
from services.trainer.metrics import TrainerMetrics
from services.trainer.orders import RankOrder, RankReply, SavePolicy
from services.trainer.policy_start import start_policy
from services.trainer.publishing import Publisher
from services.trainer.rank_group import RankGroup
from services.trainer.rank_work import RankWork
from services.trainer.reports import Board
from services.trainer.round_training import RoundTraining
from services.trainer.sample_selection import SampleSelection
from services.trainer.sequence_cost import BY_TOKENS
from services.weights.published import VersionState
from services.weights.sender import Sender
from services.weights.shm_transport import ShmSourceTransport
from tests.unit.trainer.scripted_weights import ScriptedWeights, outcome

RUN = "run"
SELECTION = SampleSelection(max_tokens=64, drop_overlong=False, leave_out_truncated=False)
CONFIG = TrainerConfig(
    updates_per_step=1,
    optimizer=OptimizerConfig(lr=1.0, ramp_steps=0),
    algorithm=DapoConfig(importance=ImportanceConfig(mode="off")),
)


class Words:
    def decode(self, token_ids: tuple[int, ...]) -> str:
        return " ".join(map(str, token_ids))


class CountedEvaluation:
    def __init__(self) -> None:
        self.num_calls = 0

    def held_out_accuracy(self, *, num_prompts: int) -> float:
        self.num_calls += 1
        return num_prompts / 100


class CrashingWork:
    """Carries orders out until a checkpoint is ordered, then dies."""

    def __init__(self, work: RankWork) -> None:
        self.work = work
        self.is_armed = False

    def carry_out(self, order: RankOrder) -> RankReply:
        if self.is_armed and isinstance(order, SavePolicy):
            raise KeyboardInterrupt("killed")
        return self.work.carry_out(order)


class Scene:
    """What outlives a trainer process: queue, ledger, checkpoints; and trainers over it."""

    def __init__(self, folder: Path) -> None:
        self.state = MemoryQueueState()
        self.ledger = MemoryPromptLedger(
            run_id=RUN, groups_per_round=1, max_prompts_per_round=2, lease_seconds=1e6, clock=lambda: 0.0
        )
        self.checkpoints = CheckpointStore(folder / "checkpoints", keep=2)
        self.folder = folder
        self.made: dict[int, Group] = {}

    def queue(self) -> MemorySampleQueue:
        return MemorySampleQueue(run_id=RUN, max_groups=100, state=self.state)

    def generate(self, version: PolicyVersion) -> None:
        """What a rollout service does when a version is committed: it makes the round's group."""
        for lease in self.ledger.lease(worker="w", max_round=version.step, max_prompts=1):
            name = group_id(run_id=RUN, round_=lease.round, position=lease.position)
            samples = tuple(self.sample(name, index, version.step) for index in range(2))
            group = Group(
                group_id=name, round=lease.round, position=lease.position, prompt_token_ids=(1,), samples=samples
            )
            self.queue().push(group)
            assert self.ledger.settle_accepted(lease, rewards=[sample.reward for sample in samples])
            self.made[lease.round] = group

    @staticmethod
    def sample(name: str, index: int, step: int) -> Sample:
        """Sample 0 answers token 2 and is right, sample 1 answers 3 and is wrong."""
        return Sample(
            sample_id=f"{name}/{index}",
            response_token_ids=(2 + index, 0),
            logprobs=(-1.0, -1.0),
            version_spans=(VersionSpan(step=step, num_tokens=2),),
            reward=1.0 - index,
            finish_reason=FinishReason.STOP,
            num_verify_steps=1,
        )


class Trainer:
    """One life of the trainer process."""

    def __init__(self, scene: Scene, weights: ScriptedWeights, *, checkpoint_every_steps: int = 2) -> None:
        self.scene, self.weights = scene, weights
        self.policy = FakePolicy(vocab_size=5)
        self.board = Board()
        self.evaluation = CountedEvaluation()
        self.stopped = threading.Event()
        self.work = CrashingWork(
            RankWork(
                rank=0,
                policy=self.policy,
                sender=Sender(rank=0, transport=ShmSourceTransport("test-loop")),
                round_training=RoundTraining(
                    self.policy, CONFIG, selection=SELECTION, sequence_cost=BY_TOKENS, max_response_tokens=8, seed=0
                ),
                warm_start=None,
            )
        )
        ranks = RankGroup(self.policy, self.work)
        step = start_policy(
            ranks,
            board=self.board,
            checkpoints=scene.checkpoints,
            num_warm_start_steps=0,
            warm_start_folder=scene.folder / "warm",
            keeps_reference=False,
            should_stop=self.stopped.is_set,
        )
        queue = scene.queue()
        self.loop = TrainingLoop(
            version_run_id="run.0",
            step=step,
            ranks=ranks,
            publisher=Publisher(ranks, weights, engines_timeout_seconds=1.0, should_stop=self.stopped.is_set),
            collector=RoundCollector(
                queue=queue,
                ledger=scene.ledger,
                max_lag_versions=0,
                min_groups=0,
                timeout_seconds=2.0,
                should_stop=self.stopped.is_set,
            ),
            queue=queue,
            checkpoints=scene.checkpoints,
            checkpoint_every_steps=checkpoint_every_steps,
            evaluation=self.evaluation,
            evaluate_every_steps=2,
            evaluation_prompts=50,
            selection=SELECTION,
            decoder=Words(),
            board=self.board,
            metrics=TrainerMetrics(CollectorRegistry()),
            should_stop=self.stopped.is_set,
        )

    def run_to(self, target_step: int) -> None:
        """Runs until the version of the target step is committed and its report is out."""
        self.board.raise_target(target_step)
        reports = self.board.reports_from(target_step - 1)
        waiter = threading.Thread(target=lambda: (next(reports, None), self.stopped.set()), daemon=True)
        waiter.start()
        try:
            self.loop.run()
        finally:
            self.board.close()


def make_scene(folder: Path) -> tuple[Scene, ScriptedWeights]:
    scene, weights = Scene(folder), ScriptedWeights()
    weights.on_commit = scene.generate
    return scene, weights


def test_three_steps_publish_four_versions_and_move_the_policy_towards_the_reward(tmp_path: Path) -> None:
    scene, weights = make_scene(tmp_path)
    trainer = Trainer(scene, weights)
    before = trainer.policy.owned_shards()[0].tensor.clone()
    trainer.run_to(3)
    assert [version.step for version in weights.published] == [0, 1, 2, 3]
    change = torch.log_softmax(trainer.policy.owned_shards()[0].tensor[1], 0) - torch.log_softmax(before[1], 0)
    assert change[2] > 0.1
    assert change[3] < -0.1
    assert trainer.policy.num_updates == 3
    assert trainer.board.status.num_versions_committed == 3


def test_a_step_reports_its_figures(tmp_path: Path) -> None:
    scene, weights = make_scene(tmp_path)
    trainer = Trainer(scene, weights)
    trainer.run_to(2)
    first, second = trainer.board.reports_from(0)
    assert (first.round.mean_reward, first.round.num_samples, first.round.num_response_tokens) == (0.5, 2, 4)
    assert (first.round.accept_length, first.publish.pause_seconds, first.publish.is_committed) == (1.0, 0.02, True)
    assert (first.held_out_accuracy, second.held_out_accuracy) == (None, 0.5)
    assert trainer.evaluation.num_calls == 1


def test_groups_are_acknowledged_by_the_checkpoint_that_holds_their_effect(tmp_path: Path) -> None:
    scene, weights = make_scene(tmp_path)
    depths: list[int] = []
    weights.on_commit = lambda version: (depths.append(scene.queue().depth()), scene.generate(version))
    Trainer(scene, weights, checkpoint_every_steps=2).run_to(4)
    # Before each commit wait the groups of the steps since the last checkpoint.
    assert depths == [0, 1, 2, 1, 2]
    assert scene.checkpoints.newest_step() == 4
    assert scene.queue().depth() == 1  # the group of round 4, which nobody asked to train on


def test_a_crash_between_step_and_checkpoint_replays_the_same_group_and_ends_in_the_same_weights(
    tmp_path: Path,
) -> None:
    calm, calm_weights = make_scene(tmp_path / "calm")
    reference = Trainer(calm, calm_weights)
    reference.run_to(4)

    scene, weights = make_scene(tmp_path / "crash")
    first = Trainer(scene, weights)
    first.run_to(2)
    crashing = Trainer(scene, weights)
    crashing.work.is_armed = True
    with pytest.raises(KeyboardInterrupt):
        crashing.run_to(4)  # dies while it saves step 4
    replay = Trainer(scene, weights)
    assert scene.checkpoints.newest_step() == 2
    replay.run_to(4)
    assert torch.equal(replay.policy.owned_shards()[0].tensor, reference.policy.owned_shards()[0].tensor)
    assert scene.ledger.round_state(2).num_rejected == {}


def test_an_aborted_version_is_published_again_and_counted(tmp_path: Path) -> None:
    scene, weights = make_scene(tmp_path)
    weights.script = [outcome(VersionState.ABORTED, reason="rollout-0: slow")]
    trainer = Trainer(scene, weights)
    trainer.run_to(1)
    assert [version.step for version in weights.published] == [0, 1]
    assert trainer.board.status.num_versions_aborted == 1
    assert weights.num_plans == 2


def test_a_version_that_is_always_aborted_ends_the_loop_with_the_reason(tmp_path: Path) -> None:
    scene, weights = make_scene(tmp_path)
    weights.script = [outcome(VersionState.ABORTED, reason="rollout-0: slow")] * 3
    with pytest.raises(AbortedError, match=r"version run\.0@0 was not committed in 3 attempts: rollout-0: slow"):
        Trainer(scene, weights).run_to(1)


def test_a_plan_that_is_out_of_date_is_made_again(tmp_path: Path) -> None:
    scene, weights = make_scene(tmp_path)
    weights.script = [StateConflictError("plan again")]
    Trainer(scene, weights).run_to(1)
    assert [version.step for version in weights.published] == [0, 1]
    assert weights.num_plans == 2


def test_engines_that_never_come_end_the_loop_with_a_remedy(tmp_path: Path) -> None:
    scene, weights = make_scene(tmp_path)
    weights.script = [StateConflictError("0 engines take part")] * 10
    with pytest.raises(DeadlineError, match=r"0 engines take part; see the logs of the rollout services"):
        Trainer(scene, weights).run_to(1)


def test_a_round_in_which_every_group_was_dropped_still_makes_a_version(tmp_path: Path) -> None:
    scene, weights = make_scene(tmp_path)

    def drop_all(version: PolicyVersion) -> None:
        while leases := scene.ledger.lease(worker="w", max_round=version.step, max_prompts=1):
            scene.ledger.settle_dropped(leases[0], reason="equal_rewards", rewards=[0.0, 0.0])

    weights.on_commit = drop_all
    trainer = Trainer(scene, weights)
    before = trainer.policy.owned_shards()[0].tensor.clone()
    trainer.run_to(2)
    assert torch.equal(trainer.policy.owned_shards()[0].tensor, before)
    report = next(iter(trainer.board.reports_from(0)))
    assert (report.round.num_groups, report.round.num_groups_dropped) == (0, {"equal_rewards": 2})
    assert [version.step for version in weights.published] == [0, 1, 2]
