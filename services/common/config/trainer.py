"""The sections of the trainer and the weights service."""

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from services.common.config.algorithm import AlgorithmConfig, DapoConfig, with_algorithm_type
from services.common.config.base import (
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    Section,
)
from services.common.config.run import EndpointConfig


class ParallelConfig(Section):
    """How the ranks share the model; what is left of `ranks` is data parallel."""

    tp: PositiveInt = 1
    """Tensor-parallel size."""
    pp: PositiveInt = 1
    """Pipeline-parallel size."""
    ep: PositiveInt = 1
    """Expert-parallel size."""
    etp: NonNegativeInt = 0
    """Expert-tensor-parallel size; 0 takes `tp` when `ep` is 1, else 1."""
    cp: PositiveInt = 1
    """Context-parallel size."""

    @property
    def expert_tp(self) -> int:
        """The expert-tensor-parallel size in force."""
        return self.etp or (self.tp if self.ep == 1 else 1)


class OptimizerConfig(Section):
    """AdamW."""

    lr: PositiveFloat = 2e-4
    """Learning rate after the ramp."""
    ramp_steps: NonNegativeInt = 3
    """Training steps over which the learning rate rises linearly."""
    weight_decay: NonNegativeFloat = 0.0
    """Decoupled weight decay."""
    betas: tuple[float, float] = (0.9, 0.98)
    """Decay of the two moments."""
    clip_gradient_norm: PositiveFloat = 1.0
    """Gradient norm above which gradients are scaled down."""
    mtp_lr: PositiveFloat = 1e-3
    """Learning rate of the MTP layer."""


class MtpConfig(Section):
    """Online training of the MTP layer, the draft of speculative decoding."""

    enabled: bool = True
    """Whether to train it beside the policy."""
    loss_scale: PositiveFloat = 0.1
    """Weight of its loss; it only reaches the MTP layer's own parameters."""


class WarmStartConfig(Section):
    """Supervised steps on demonstrations before the reinforcement learning."""

    good_steps: NonNegativeInt = 800
    """Steps on good demonstrations."""
    mixed_steps: NonNegativeInt = 150
    """Steps on a mixture with bad ones."""
    bad_share: float = Field(default=0.65, ge=0, le=1)
    """Share of bad demonstrations in the mixture."""
    batch_size: PositiveInt = 64
    """Demonstrations per step."""
    lr: PositiveFloat = 3e-3
    """Learning rate after the ramp."""
    ramp_steps: NonNegativeInt = 20
    """Steps over which it rises."""
    final_lr_share: PositiveFloat = 0.05
    """It falls linearly over the mixed steps to this share."""
    weight_decay: NonNegativeFloat = 0.01
    """Decoupled weight decay."""

    @property
    def num_steps(self) -> int:
        """All steps."""
        return self.good_steps + self.mixed_steps


class CheckpointConfig(Section):
    """Checkpoints, from which `--resume` goes on."""

    every_steps: PositiveInt = 5
    """A checkpoint after every so many steps, and one at the end."""
    keep: PositiveInt = 2
    """Newest checkpoints kept."""


class TrainerConfig(Section):
    """The trainer service."""

    endpoint: EndpointConfig = EndpointConfig()
    """Where rank 0 listens."""
    ranks: PositiveInt = 1
    """Trainer processes."""
    device: Literal["cpu", "cuda"] = "cpu"
    """Where they run."""
    parallel: ParallelConfig = ParallelConfig()
    """How they share the model."""
    updates_per_step: PositiveInt = 2
    """Optimizer steps a round is split into, num_steps_per_rollout elsewhere. Samples of a group may go to different
    steps: advantages are taken over whole groups before."""
    max_tokens_per_rank: PositiveInt = 4096
    """Most tokens of one micro-batch on one rank, max_tokens_per_gpu elsewhere; never exceeded."""
    balance: Literal["tokens", "flops"] = "tokens"
    """What ranks and micro-batches get equal shares of: tokens, or the work of the model's matrices and attention."""
    overlong_samples: Literal["error", "drop"] = "error"
    """What happens to a sample longer than max_tokens_per_rank: the run ends and names it, or it is not trained on
    and counted; its reward stays in its group's statistics."""
    optimizer: OptimizerConfig = OptimizerConfig()
    """The optimizer."""
    algorithm: Annotated[AlgorithmConfig, Field(discriminator="type"), BeforeValidator(with_algorithm_type)] = (
        DapoConfig()
    )
    """The policy loss."""
    mtp: MtpConfig = MtpConfig()
    """The MTP layer."""
    warm_start: WarmStartConfig = WarmStartConfig()
    """The warm start."""
    checkpoint: CheckpointConfig = CheckpointConfig()
    """Checkpoints."""
    claim_timeout_seconds: PositiveFloat = 600.0
    """Time a round may take to arrive before the step fails."""


class WeightsConfig(Section):
    """The weights service and the transfer."""

    endpoint: EndpointConfig = EndpointConfig()
    """Where it listens."""
    transport: Literal["shm", "tcp"] = "shm"
    """How bytes go from trainer ranks to engines: shared memory on one host, or TCP."""
    bucket_mb: PositiveInt = 64
    """Largest piece, in MiB; larger blocks are split."""
    phase_timeout_seconds: PositiveFloat = 120.0
    """Time each phase of a version may take before it is aborted."""
