"""The whole recipe and the rules that span sections: an impossible recipe fails here, with the reason."""

from pydantic import model_validator

from services.common.config.base import Section
from services.common.config.rollout import RewardConfig, RolloutConfig
from services.common.config.run import DataConfig, ModelConfig, RedisConfig, RunConfig, SecurityConfig
from services.common.config.trainer import TrainerConfig, WeightsConfig


class Recipe(Section):
    """Everything that decides a run."""

    run: RunConfig = RunConfig()
    """The run."""
    model: ModelConfig = ModelConfig()
    """The model."""
    data: DataConfig = DataConfig()
    """The prompts."""
    rollout: RolloutConfig = RolloutConfig()
    """Generation."""
    reward: RewardConfig = RewardConfig()
    """Grading."""
    trainer: TrainerConfig = TrainerConfig()
    """Training."""
    weights: WeightsConfig = WeightsConfig()
    """Weight transfer."""
    redis: RedisConfig = RedisConfig()
    """Queue and ledger."""
    security: SecurityConfig = SecurityConfig()
    """Tokens and certificates."""

    @model_validator(mode="after")
    def _check_model(self) -> "Recipe":
        if bool(self.model.preset) == bool(self.model.path):
            raise ValueError(
                f"model.preset is {self.model.preset!r} and model.path is {self.model.path!r}; set exactly one of them"
            )
        if self.model.preset == "tiny-byte" and not self.data.prompt_data:
            raise ValueError('model.preset "tiny-byte" has no built-in prompts; set data.prompt_data to a .jsonl file')
        return self

    @model_validator(mode="after")
    def _check_layout(self) -> "Recipe":
        parallel, ranks = self.trainer.parallel, self.trainer.ranks
        model_ranks = parallel.tp * parallel.pp * parallel.cp
        if ranks % model_ranks:
            raise ValueError(
                f"trainer.ranks is {ranks}, but tp {parallel.tp} x pp {parallel.pp} x cp {parallel.cp} needs a "
                f"multiple of {model_ranks}; set trainer.ranks={model_ranks} or make trainer.parallel smaller"
            )
        expert_ranks = parallel.ep * parallel.expert_tp * parallel.pp
        if ranks % expert_ranks:
            raise ValueError(
                f"trainer.ranks is {ranks}, but ep {parallel.ep} x etp {parallel.expert_tp} x pp {parallel.pp} needs a "
                f"multiple of {expert_ranks}; set trainer.ranks={expert_ranks} or make trainer.parallel smaller"
            )
        if parallel.ep == 1 and parallel.expert_tp != parallel.tp:
            # megatron-core 0.16.1 does not sum expert gradients over tp in this layout, in silence.
            raise ValueError(
                f"trainer.parallel has tp {parallel.tp} with ep 1 and etp {parallel.expert_tp}, which trains experts "
                f"with wrong gradients; set trainer.parallel.etp={parallel.tp} or ep={parallel.tp}"
            )
        return self

    @model_validator(mode="after")
    def _check_training(self) -> "Recipe":
        algorithm, rollout = self.trainer.algorithm, self.rollout
        if rollout.samples_per_prompt < 2 and algorithm.baseline != "none":
            raise ValueError(
                f"rollout.samples_per_prompt is 1, but with trainer.algorithm.baseline {algorithm.baseline!r} a group "
                'of one has no advantage; set it to 2 or more, or the baseline to "none"'
            )
        if rollout.samples_per_prompt < 2 and rollout.drop_equal_rewards:
            raise ValueError(
                "rollout.samples_per_prompt is 1 with rollout.drop_equal_rewards true, which drops every group of one; "
                "set drop_equal_rewards=false"
            )
        needed = self.data.max_prompt_tokens + rollout.sampling.max_new_tokens
        if needed > rollout.engine.context_length:
            raise ValueError(
                f"data.max_prompt_tokens {self.data.max_prompt_tokens} + rollout.sampling.max_new_tokens "
                f"{rollout.sampling.max_new_tokens} = {needed} exceeds rollout.engine.context_length "
                f"{rollout.engine.context_length}; raise the latter or lower the former"
            )
        if needed > self.trainer.max_tokens_per_rank and self.trainer.overlong_samples == "error":
            raise ValueError(
                f"a sample may have {needed} tokens, more than trainer.max_tokens_per_rank "
                f'{self.trainer.max_tokens_per_rank}; raise it to {needed} or set trainer.overlong_samples="drop"'
            )
        queued = rollout.prompts_per_step * (rollout.max_lag_versions + 1 + self.trainer.checkpoint.every_steps)
        if queued > self.redis.max_queued_groups:
            raise ValueError(
                f"redis.max_queued_groups is {self.redis.max_queued_groups}, but groups stay queued until the next "
                f"checkpoint, which takes {queued}; raise it or lower trainer.checkpoint.every_steps"
            )
        return self

    @model_validator(mode="after")
    def _check_sampling_rules(self) -> "Recipe":
        overlong, limit = self.rollout.overlong, self.rollout.sampling.max_new_tokens
        if bool(overlong.penalty_buffer_tokens) != bool(overlong.penalty_factor):
            raise ValueError(
                f"rollout.overlong has penalty_buffer_tokens {overlong.penalty_buffer_tokens} and penalty_factor "
                f"{overlong.penalty_factor}, of which one alone does nothing; set both above 0 or both to 0"
            )
        if overlong.penalty_buffer_tokens > limit:
            raise ValueError(
                f"rollout.overlong.penalty_buffer_tokens is {overlong.penalty_buffer_tokens}, more than "
                f"rollout.sampling.max_new_tokens {limit}; set it to {limit} or less"
            )
        evaluation = self.rollout.evaluation
        if evaluation.temperature == 0 and evaluation.samples_per_prompt > 1:
            raise ValueError(
                f"rollout.evaluation.samples_per_prompt is {evaluation.samples_per_prompt}, but at temperature 0 all "
                "responses are the same; set samples_per_prompt=1 or a temperature above 0"
            )
        return self
