"""One supervised step on demonstrations, on one rank."""

from collections.abc import Sequence

from services.common.config.trainer import TrainerConfig
from services.common.prompts.demonstrations import Demonstration, DemonstrationSource
from services.trainer.batch import PackedBatch
from services.trainer.learning_rate import warm_start_lr
from services.trainer.loss_assembly import supervised_loss
from services.trainer.packing import TrainingSequence, pack, plan_micro_batches
from services.trainer.policy import Policy


class WarmStart:
    """Trains the policy on demonstrations. Collective."""

    def __init__(self, policy: Policy, demonstrations: DemonstrationSource, config: TrainerConfig) -> None:
        self._policy = policy
        self._demonstrations = demonstrations
        self._config = config

    def step(self, step: int) -> dict[str, float]:
        """The supervised step; its mean loss per response token."""
        settings = self._config.warm_start
        bad_share = 0.0 if step < settings.good_steps else settings.bad_share
        demonstrations = self._demonstrations.batch(step, size=settings.batch_size, bad_share=bad_share)
        num_tokens = sum(len(item.response_token_ids) for item in demonstrations)
        lr = warm_start_lr(settings, step=step)
        figures = self._policy.update(
            self._batches(demonstrations),
            supervised_loss,
            global_count=float(num_tokens),
            lr=lr,
            mtp_lr=lr,
            weight_decay=settings.weight_decay,
        )
        return {"num_updates": 1.0, "mtp_loss": figures.mtp_loss, "gradient_norm": figures.gradient_norm}

    def _batches(self, demonstrations: Sequence[Demonstration]) -> list[PackedBatch]:
        sequences = [
            TrainingSequence(
                prompt_token_ids=item.prompt_token_ids,
                response_token_ids=item.response_token_ids,
                engine_logprobs=(0.0,) * len(item.response_token_ids),
                advantage=0.0,
            )
            for item in demonstrations
        ]
        plan = plan_micro_batches(
            [sequence.num_tokens for sequence in sequences],
            max_tokens=self._config.max_tokens_per_rank,
            data_parallel_size=self._policy.data_parallel_size,
        )
        mine = plan[self._policy.data_parallel_rank]
        return [pack(sequences, micro_batch).to(self._policy.device) for micro_batch in mine]
