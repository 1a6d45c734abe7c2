"""The optimizer steps of one round on one rank: from groups to gradients.

Every rank computes the same plan from the same groups and takes its own share of it.
"""

from collections import defaultdict
from collections.abc import Sequence

import torch

from services.common.config.trainer import TrainerConfig
from services.common.records import Group
from services.trainer.algorithm_choice import sample_advantages
from services.trainer.batch import PackedBatch
from services.trainer.learning_rate import ramped
from services.trainer.loss_assembly import make_policy_loss
from services.trainer.packing import TrainingSequence, pack, plan_micro_batches, split_updates
from services.trainer.policy import Policy
from services.trainer.prepared_update import PreparedUpdate
from services.trainer.sample_selection import SampleSelection
from services.trainer.sequence_cost import SequenceCost
from services.trainer.update_preparation import UpdatePreparation


class RoundTraining:
    """Trains the policy on rounds. Collective."""

    def __init__(
        self,
        policy: Policy,
        config: TrainerConfig,
        *,
        selection: SampleSelection,
        sequence_cost: SequenceCost,
        max_response_tokens: int,
        seed: int,
    ) -> None:
        self._policy = policy
        self._preparation = UpdatePreparation(policy, config.algorithm, max_response_tokens=max_response_tokens)
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
        updates = self._preparation.prepare([self._batches(sequences, share) for share in shares])
        figures: defaultdict[str, float] = defaultdict(float)
        for update in updates:
            for name, value in self._update(step, update).items():
                figures[name] += value
        figures["max_mismatch"] = max((update.max_mismatch for update in updates), default=0.0)
        return dict(figures)

    def _sequences(self, groups: Sequence[Group]) -> list[TrainingSequence]:
        samples = [(group, sample) for group in groups for sample in group.samples]
        advantages = sample_advantages(
            self._config.algorithm,
            torch.tensor([sample.reward for _, sample in samples], dtype=torch.float64),
            group_sizes=[len(group.samples) for group in groups],
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
        batches = [pack(sequences, [share[position] for position in micro_batch]) for micro_batch in mine]
        return [batch.to(self._policy.device) for batch in batches]

    def _update(self, step: int, update: PreparedUpdate) -> dict[str, float]:
        optimizer = self._config.optimizer
        figures = self._policy.update(
            [item.batch for item in update.batches],
            make_policy_loss(self._config.algorithm, update.batches),
            # An update whose tokens were all rejected has a zero loss; any count will do.
            global_count=update.global_count or 1.0,
            lr=ramped(optimizer.lr, step=step, ramp_steps=optimizer.ramp_steps),
            mtp_lr=ramped(optimizer.mtp_lr, step=step, ramp_steps=optimizer.ramp_steps),
            weight_decay=optimizer.weight_decay,
        )
        return {
            "num_updates": 1.0,
            "global_count": update.global_count,
            "gradient_norm": figures.gradient_norm,
            "mtp_loss": figures.mtp_loss,
            **update.figures,
            **figures.metric_sums,
        }
