"""The optimizer steps of one round on one rank: from groups to gradients.

Every rank computes the same plan from the same groups and takes its own share of it.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from services.common.config.trainer import TrainerConfig
from services.common.records import Group
from services.trainer.algorithms.advantages import group_normalized
from services.trainer.batch import PackedBatch
from services.trainer.learning_rate import ramped
from services.trainer.loss_assembly import largest_mismatch, make_policy_loss, reject_unusable
from services.trainer.packing import TrainingSequence, pack, plan_micro_batches, split_updates
from services.trainer.policy import Policy
from services.trainer.sample_selection import SampleSelection
from services.trainer.sequence_cost import SequenceCost


class RoundTraining:
    """Trains the policy on rounds. Collective."""

    def __init__(
        self,
        policy: Policy,
        config: TrainerConfig,
        *,
        selection: SampleSelection,
        sequence_cost: SequenceCost,
        seed: int,
    ) -> None:
        self._policy = policy
        self._config = config
        self._selection = selection
        self._sequence_cost = sequence_cost
        self._seed = seed

    def train(self, step: int, groups: Sequence[Group]) -> dict[str, float]:
        """The round's optimizer steps; their figures, summed over updates and reduced over ranks.

        max_mismatch is this rank's own. Without samples to train on nothing happens and there are no figures.

        Raises:
            InvalidInputError: a sample is too long; no rank has done anything yet.
        """
        # Advantages are taken over whole groups, left-out samples included.
        everything, selected = self._sequences(groups), self._selection.select(groups)
        sequences = [everything[index] for index in selected.indices]
        seed = f"{self._seed}/{step}"
        shares = split_updates(len(sequences), updates_per_step=self._config.updates_per_step, seed=seed)
        updates = [self._prepare(self._batches(sequences, share)) for share in shares]
        figures: defaultdict[str, float] = defaultdict(float)
        for update in updates:
            for name, value in self._update(step, update).items():
                figures[name] += value
        figures["max_mismatch"] = max((update.max_mismatch for update in updates), default=0.0)
        return dict(figures)

    def _sequences(self, groups: Sequence[Group]) -> list[TrainingSequence]:
        samples = [(group, sample) for group in groups for sample in group.samples]
        advantages = group_normalized(
            torch.tensor([sample.reward for _, sample in samples], dtype=torch.float64),
            group_sizes=[len(group.samples) for group in groups],
            normalize_std=self._config.algorithm.normalize_std,
        )
        return [
            TrainingSequence(
                prompt_token_ids=group.prompt_token_ids,
                response_token_ids=sample.response_token_ids,
                engine_logprobs=sample.logprobs,
                advantage=advantage,
            )
            for (group, sample), advantage in zip(samples, advantages.tolist(), strict=True)
        ]

    def _batches(self, sequences: Sequence[TrainingSequence], share: Sequence[int]) -> list[PackedBatch]:
        plan = plan_micro_batches(
            [sequences[index].num_tokens for index in share],
            max_tokens=self._config.max_tokens_per_rank,
            data_parallel_size=self._policy.data_parallel_size,
            cost=self._sequence_cost,
        )
        mine = plan[self._policy.data_parallel_rank]
        return [pack(sequences, [share[position] for position in micro_batch]) for micro_batch in mine]

    def _prepare(self, batches: Sequence[PackedBatch]) -> "_Update":
        """Takes the old log-probabilities, before any update of the round changes the policy."""
        old_logprobs = [statistics.logprobs for statistics in self._policy.statistics(batches)]
        accepted = reject_unusable(batches, old_logprobs)
        return _Update(
            batches=accepted.batches,
            old_logprobs=old_logprobs,
            num_rejected=accepted.num_rejected,
            max_mismatch=largest_mismatch(accepted.batches, old_logprobs),
        )

    def _update(self, step: int, update: "_Update") -> dict[str, float]:
        counts = self._policy.sum_over_ranks(
            {
                "num_loss_tokens": float(sum(batch.num_loss_tokens for batch in update.batches)),
                "num_rejected": float(update.num_rejected),
            }
        )
        optimizer = self._config.optimizer
        figures = self._policy.update(
            update.batches,
            make_policy_loss(self._config.algorithm, update.old_logprobs),
            # A share whose tokens were all rejected has a zero loss; any count will do.
            global_count=max(1.0, counts["num_loss_tokens"]),
            lr=ramped(optimizer.lr, step=step, ramp_steps=optimizer.ramp_steps),
            mtp_lr=ramped(optimizer.mtp_lr, step=step, ramp_steps=optimizer.ramp_steps),
            weight_decay=optimizer.weight_decay,
        )
        return {
            "num_updates": 1.0,
            "num_rejected": counts["num_rejected"],
            "gradient_norm": figures.gradient_norm,
            "mtp_loss": figures.mtp_loss,
            **figures.metric_sums,
        }


@dataclass(frozen=True, kw_only=True)
class _Update:
    batches: list[PackedBatch]
    old_logprobs: list[torch.Tensor]
    num_rejected: int
    max_mismatch: float
