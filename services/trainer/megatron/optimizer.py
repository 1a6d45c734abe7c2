"""AdamW through Megatron's optimizer, one for the trunk and one for the MTP block, each clipped by its own norm."""

import math
from dataclasses import dataclass

import torch
from megatron.core.dist_checkpointing.mapping import StateDict
from megatron.core.distributed import DistributedDataParallel
from megatron.core.optimizer import ChainedOptimizer, get_megatron_optimizer
from megatron.core.optimizer import OptimizerConfig as MegatronOptimizerConfig
from megatron.core.optimizer.clip_grads import clip_grad_by_total_norm_fp32

from services.common.config.trainer import OptimizerConfig
from services.common.errors import StateConflictError


@dataclass(frozen=True, kw_only=True)
class PartOptimizer:
    """The optimizer of one part of the model."""

    name: str
    """The part, for messages: "trunk" or "mtp"."""
    megatron: ChainedOptimizer
    """Megatron's optimizer: one for dense and one for expert parameters under expert parallelism."""
    clip_gradient_norm: float
    """Norm above which the gradients are scaled down."""

    def clip(self) -> float:
        """Collective. Takes the gradients from the buffers, clips them and returns their norm before.

        Raises:
            StateConflictError: the norm is not finite.
        """
        self.megatron.prepare_grads()
        norm = float(self.megatron.get_grad_norm())
        if not math.isfinite(norm):
            raise StateConflictError(
                f"gradient norm of the {self.name} is {norm}, a finite one is wanted; the step was not taken, "
                "look for a loss with infinite or undefined values, or lower trainer.optimizer.lr"
            )
        for optimizer in self.megatron.chained_optimizers:
            clip_grad_by_total_norm_fp32(optimizer.get_parameters(), self.clip_gradient_norm, norm)
        return norm

    def step(self, *, lr: float, weight_decay: float) -> None:
        """Collective. Updates the parameters with the clipped gradients; vectors (norms, biases) are not decayed."""
        for group in self.megatron.param_groups:
            group["lr"] = lr
            group["weight_decay"] = weight_decay * group["wd_mult"]
        self.megatron.step_with_ready_grads()

    def zero_gradients(self) -> None:
        """Lets go of the gradients, so that the next backward pass starts from the buffers' zeros."""
        self.megatron.zero_grad()

    def fill_state(self) -> None:
        """Gives each parameter the zero moments that its first step would, so that there is a state to save or load."""
        for inner in self._inner():
            for parameter in (parameter for group in inner.param_groups for parameter in group["params"]):
                if not inner.state[parameter]:
                    inner.state[parameter] = {
                        "step": torch.zeros((), dtype=torch.float32, device=parameter.device),
                        "exp_avg": torch.zeros_like(parameter),
                        "exp_avg_sq": torch.zeros_like(parameter),
                    }

    def load_state(self, state: StateDict) -> None:
        """Takes the state of a checkpoint; every parameter gets a step count of its own."""
        is_single = len(self.megatron.chained_optimizers) == 1
        for inner_state in [state] if is_single else state.values():
            # Megatron leaves a step count of 0 out of the file.
            inner_state["state"].setdefault("common_step", torch.zeros((), dtype=torch.float32))
        self.megatron.load_state_dict(state)
        for inner in self._inner():
            for moments in inner.state.values():
                # One tensor for all parameters would be raised by one for each of them.
                moments["step"] = moments["step"].clone()

    def reset(self) -> None:
        """Forgets moments and step count, and takes the parameters as they are now."""
        for inner in self._inner():
            inner.state.clear()
        self.megatron.reload_model_params()

    def _inner(self) -> list[torch.optim.Optimizer]:
        return [part.optimizer for part in self.megatron.chained_optimizers if not part.is_stub_optimizer]


def build_part_optimizer(
    name: str, part: DistributedDataParallel, config: OptimizerConfig, *, dtype: torch.dtype
) -> PartOptimizer:
    """The optimizer of one part. Collective; the learning rate is given at each step."""
    megatron = get_megatron_optimizer(
        MegatronOptimizerConfig(
            optimizer="adam",
            lr=config.lr,
            weight_decay=config.weight_decay,
            adam_beta1=config.betas[0],
            adam_beta2=config.betas[1],
            adam_eps=1e-8,
            bf16=dtype == torch.bfloat16,
            params_dtype=dtype,
            use_distributed_optimizer=False,
            clip_grad=config.clip_gradient_norm,
        ),
        [part],
        use_gloo_process_groups=False,
    )
    for group in megatron.param_groups:
        # torch's one-kernel step; a loop over small parameters costs more than the arithmetic.
        group["fused"] = True
    return PartOptimizer(name=name, megatron=megatron, clip_gradient_norm=config.clip_gradient_norm)
