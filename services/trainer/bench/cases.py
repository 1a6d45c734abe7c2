"""What is timed: the assembled loss of each type, as production runs it, and its variants."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from services.common.config.algorithm import (
    AlgorithmConfig,
    CispoConfig,
    DapoConfig,
    DrGrpoConfig,
    GrpoConfig,
    GspoConfig,
    GspoTokenConfig,
    KlConfig,
    ReinforcePlusPlusBaselineConfig,
    ReinforcePlusPlusConfig,
    RlooConfig,
)
from services.trainer.bench.batch import BenchBatch, BenchPolicy
from services.trainer.bench.peers import PeerLoss
from services.trainer.loss_assembly import make_policy_loss
from services.trainer.policy import TokenStatistics
from services.trainer.prepared_update import PreparedUpdate
from services.trainer.update_preparation import UpdatePreparation

ALGORITHMS: Mapping[str, AlgorithmConfig] = {
    "grpo": GrpoConfig(),
    "dapo": DapoConfig(),
    "dr_grpo": DrGrpoConfig(),
    "rloo": RlooConfig(),
    "reinforce_plus_plus": ReinforcePlusPlusConfig(),
    "reinforce_plus_plus_baseline": ReinforcePlusPlusBaselineConfig(),
    "gspo": GspoConfig(),
    "gspo_token": GspoTokenConfig(),
    "cispo": CispoConfig(),
    "dapo, dual clip": DapoConfig(dual_clip=3.0),
    "dapo, sequence masking": DapoConfig(max_divergence=0.05),
    "dapo, entropy bonus": DapoConfig(entropy_coefficient=0.01),
    "dapo, kl in the loss": DapoConfig(kl=KlConfig(placement="loss", unbiased=True)),
}
"""Every type with its defaults, then what may be added."""

_RATIOS = {"gspo": "sequence", "gspo_token": "sequence_token", "cispo": "weight"}


@dataclass(frozen=True, kw_only=True)
class BenchCase:
    """One row."""

    name: str
    """The type, and what is added to it."""
    run: Callable[[], torch.Tensor]
    """Our loss, divided by its count."""
    peer: Callable[[], torch.Tensor] | None
    """The same loss as other systems run it; None where there is no common one."""
    reads: tuple[torch.Tensor, ...]
    """What the loss has to read, the mask apart."""
    mask: torch.Tensor
    """[T] bool."""
    leaves: tuple[torch.Tensor, ...]
    """What gradients are taken for."""

    @property
    def num_bytes(self) -> int:
        """Bytes that the loss reads at least once."""
        return sum(tensor.nbytes for tensor in (*self.reads, self.mask))


def make_case(name: str, batch: BenchBatch) -> BenchCase:
    """The case of a name in ALGORITHMS."""
    algorithm = ALGORITHMS[name]
    preparation = UpdatePreparation(BenchPolicy(batch), algorithm, max_response_tokens=batch.num_columns)
    (update,) = preparation.prepare([[batch.packed]])
    return BenchCase(
        name=name,
        run=_ours(algorithm, update, batch),
        peer=_peer(name, algorithm, update, batch),
        reads=_reads(update, batch),
        mask=update.batches[0].batch.loss_mask,
        leaves=(batch.logprobs, batch.entropies) if algorithm.entropy_coefficient else (batch.logprobs,),
    )


def _ours(algorithm: AlgorithmConfig, update: PreparedUpdate, batch: BenchBatch) -> Callable[[], torch.Tensor]:
    loss_function = make_policy_loss(algorithm, update.batches)
    statistics = TokenStatistics(logprobs=batch.logprobs, entropies=batch.entropies)
    return lambda: loss_function(statistics, update.batches[0].batch, 0).loss_sum / update.global_count


def _peer(
    name: str, algorithm: AlgorithmConfig, update: PreparedUpdate, batch: BenchBatch
) -> Callable[[], torch.Tensor] | None:
    if name != algorithm.type or algorithm.whiten:
        return None
    loss = PeerLoss(
        ratio=_RATIOS.get(name, "token"),
        clip_low=algorithm.clip_low,
        clip_high=algorithm.clip_high,
        aggregation=algorithm.aggregation,
        divisor_tokens=float(batch.num_columns),
        cap=algorithm.importance.upper,
    )
    return lambda: loss.run(batch)


def _reads(update: PreparedUpdate, batch: BenchBatch) -> tuple[torch.Tensor, ...]:
    item = update.batches[0]
    tensors = [
        batch.logprobs,
        batch.entropies,
        item.old_logprobs,
        item.batch.advantages,
        item.importance_weights,
        item.aggregation_weights,
    ]
    return tuple(tensors if item.reference_logprobs is None else [*tensors, item.reference_logprobs])
