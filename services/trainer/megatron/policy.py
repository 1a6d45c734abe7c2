"""The policy on megatron-core: model, optimizers, checkpoints and hub-named weights of this rank.

Start it through start.start_policy, which prepares the process first.
"""

from collections.abc import Sequence
from pathlib import Path

import torch
from megatron.core import parallel_state

from services.common.config.trainer import TrainerConfig
from services.common.errors import StateConflictError
from services.trainer.batch import PackedBatch
from services.trainer.megatron import process_groups
from services.trainer.megatron.checkpoint import load_checkpoint, save_checkpoint
from services.trainer.megatron.hub_config import read_model_shape
from services.trainer.megatron.hub_loading import load_hub_weights, owned_shards
from services.trainer.megatron.layout_rules import check_layout
from services.trainer.megatron.model import build_model
from services.trainer.megatron.optimizer import build_part_optimizer
from services.trainer.megatron.process_groups import RankAddress
from services.trainer.megatron.reference import ReferenceWeights
from services.trainer.megatron.update import ForwardSettings, LearningRates, run_statistics, run_update
from services.trainer.policy import LossFunction, OwnedShard, TokenStatistics, UpdateFigures


class MegatronPolicy:
    """Policy on megatron-core; one a process, because Megatron keeps its groups in module state."""

    def __init__(
        self,
        *,
        model_dir: Path,
        trainer: TrainerConfig,
        temperature: float,
        dtype: torch.dtype,
        seed: int,
        address: RankAddress,
        device: torch.device,
    ) -> None:
        self._shape = read_model_shape(model_dir)
        check_layout(self._shape, trainer.parallel, num_ranks=address.world)
        self._device = device
        process_groups.start_process_groups(address, trainer.parallel, device=device, seed=seed)
        self._layout = process_groups.rank_layout()
        self._model = build_model(self._shape, trainer.parallel, dtype=dtype, device=device)
        with torch.no_grad():
            load_hub_weights(self.owned_shards(), model_dir)
        self._optimizers = [
            build_part_optimizer(part.name, part.gradients, trainer.optimizer, dtype=dtype)
            for part in self._model.parts
        ]
        self._reference: ReferenceWeights | None = None
        self._settings = ForwardSettings(
            temperature=temperature,
            vocab_size=self._shape.vocab_size,
            tp_size=trainer.parallel.tp,
            device=device,
            mtp_loss_scale=trainer.mtp.loss_scale if trainer.mtp.enabled else 0.0,
        )

    @property
    def data_parallel_rank(self) -> int:
        """This rank's place among the data-parallel replicas."""
        rank: int = parallel_state.get_data_parallel_rank()
        return rank

    @property
    def data_parallel_size(self) -> int:
        """Number of data-parallel replicas."""
        size: int = parallel_state.get_data_parallel_world_size()
        return size

    @property
    def device(self) -> torch.device:
        """The device of this rank."""
        return self._device

    def statistics(self, batches: Sequence[PackedBatch]) -> list[TokenStatistics]:
        """Collective. Statistics of each micro-batch, without gradient."""
        return run_statistics(self._model, batches, self._settings)

    def update(
        self,
        batches: Sequence[PackedBatch],
        loss_function: LossFunction,
        *,
        global_count: float,
        lr: float,
        mtp_lr: float,
        weight_decay: float,
    ) -> UpdateFigures:
        """Collective. One optimizer step on the sum of the losses over all ranks, divided by global_count once.

        Raises:
            StateConflictError: a gradient norm is not finite; every parameter is as it was.
        """
        return run_update(
            self._model,
            self._optimizers,
            batches,
            loss_function,
            self._settings,
            global_count=global_count,
            rates=LearningRates(trunk=lr, mtp=mtp_lr, weight_decay=weight_decay),
        )

    def keep_reference(self) -> None:
        """Collective. Keeps a copy of the trunk as it is now in host memory: the reference of KL terms."""
        self._reference = ReferenceWeights([tensor for _, tensor in self._model.trunk_tensors()])

    def reference_logprobs(self, batches: Sequence[PackedBatch]) -> list[torch.Tensor]:
        """Collective. [T] of each micro-batch under the reference, without gradient.

        Raises:
            StateConflictError: no reference was kept.
        """
        if self._reference is None:
            raise StateConflictError("log-probabilities of a reference are wanted, but none was kept; keep one first")
        with self._reference.in_place():
            return [statistics.logprobs for statistics in self.statistics(batches)]

    def reset_optimizer(self) -> None:
        """Collective. Forgets the optimizers' moments and step counts."""
        for optimizer in self._optimizers:
            optimizer.reset()

    def owned_shards(self) -> list[OwnedShard]:
        """The hub-named blocks this rank holds, as live views, in a fixed order; replicated ones on every rank."""
        return owned_shards(self._model.named_tensors(), model=self._shape, layout=self._layout)

    def save(self, folder: Path, *, with_optimizer: bool) -> None:
        """Collective. Writes the model, and the optimizers if asked; the folder is complete or absent.

        A folder of that name is replaced.
        """
        save_checkpoint(folder, self._model, self._optimizers if with_optimizer else [])

    def load(self, folder: Path, *, with_optimizer: bool) -> None:
        """Collective. Reads what save wrote, also under another layout; without the optimizer, that is reset.

        Raises:
            InvalidInputError: the folder holds no complete checkpoint of this model.
        """
        load_checkpoint(folder, self._model, self._optimizers, with_optimizer=with_optimizer)

    def sum_over_ranks(self, values: dict[str, float]) -> dict[str, float]:
        """Collective. Sums over the data-parallel replicas, each counted once."""
        return process_groups.sum_over_replicas(values, device=self._device)

    def broadcast_bytes(self, data: bytes | None) -> bytes:
        """Collective. Rank 0's bytes on every rank; the others pass None."""
        return process_groups.broadcast_bytes(data, device=self._device)

    def gather_bytes(self, data: bytes) -> list[bytes] | None:
        """Collective. Every rank's bytes in rank order on rank 0; None elsewhere."""
        return process_groups.gather_bytes(data, device=self._device)

    def close(self) -> None:
        """Leaves the process groups; the policy is of no use afterwards."""
        process_groups.stop_process_groups()
