"""Copies a hub checkpoint's safetensors into the parameters of this rank, and offers parameters as hub blocks."""

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from services.common.errors import InvalidInputError
from services.trainer.megatron.hub_config import ModelShape
from services.trainer.megatron.hub_mapping import RankLayout, hub_blocks
from services.trainer.policy import OwnedShard
from services.weights.transfer import SourceShard


def owned_shards(
    named_tensors: Sequence[tuple[str, torch.Tensor]], *, model: ModelShape, layout: RankLayout
) -> list[OwnedShard]:
    """The hub blocks in these tensors, as live views, in the order of the tensors."""
    return [
        OwnedShard(
            shard=SourceShard(tensor=block.tensor, tensor_shape=block.tensor_shape, box=block.box),
            tensor=tensor.detach()[block.local.slices],
        )
        for name, tensor in named_tensors
        for block in hub_blocks(name, tuple(tensor.shape), model=model, layout=layout)
    ]


def load_hub_weights(shards: Sequence[OwnedShard], model_dir: Path) -> None:
    """Fills every shard from model_dir/*.safetensors; each rank reads only its own blocks.

    Raises:
        InvalidInputError: no such files, a tensor is missing, or a shape differs from the model's.
    """
    paths = sorted(model_dir.glob("*.safetensors"))
    if not paths:
        raise InvalidInputError(f"{model_dir}: holds no .safetensors file; give a folder with a hub checkpoint")
    with ExitStack() as stack:
        try:
            files = [stack.enter_context(safe_open(path, framework="pt")) for path in paths]
        except (OSError, SafetensorError) as error:
            raise InvalidInputError(
                f"{model_dir}: a .safetensors file cannot be read ({error}); copy it again"
            ) from error
        file_of = {name: file for file in files for name in file.offset_keys()}
        for shard in shards:
            _fill(shard, file_of, model_dir)


def _fill(owned: OwnedShard, file_of: dict[str, safe_open], model_dir: Path) -> None:
    shard = owned.shard
    if shard.tensor not in file_of:
        raise InvalidInputError(
            f"{model_dir}: tensor {shard.tensor!r} is missing from the .safetensors files; give a complete checkpoint "
            "with one tensor per expert"
        )
    source = file_of[shard.tensor].get_slice(shard.tensor)  # type: ignore[no-untyped-call]
    shape = tuple(source.get_shape())
    if shape != shard.tensor_shape:
        raise InvalidInputError(
            f"{model_dir}: tensor {shard.tensor!r} has shape {shape}, but config.json wants {shard.tensor_shape}; "
            "the two do not belong together"
        )
    owned.tensor.copy_(source[shard.box.slices])
