from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from services.common.errors import InvalidInputError
from services.trainer.megatron.hub_loading import load_hub_weights, owned_shards
from tests.unit.trainer.megatron.model_shapes import ONE_RANK, SMALL

QKV = "decoder.layers.0.self_attention.linear_qkv.weight"
PREFIX = "model.layers.0.self_attn."


def _hub_files(folder: Path, **changes: torch.Tensor) -> dict[str, torch.Tensor]:
    tensors = {"q": torch.randn(12, 6), "k": torch.randn(6, 6), "v": torch.randn(6, 6)} | changes
    save_file({f"{PREFIX}q_proj.weight": tensors["q"]}, folder / "a.safetensors")
    save_file({f"{PREFIX}{part}_proj.weight": tensors[part] for part in "kv"}, folder / "b.safetensors")
    return tensors


def test_a_parameter_is_filled_from_several_files(tmp_path: Path) -> None:
    hub, parameter = _hub_files(tmp_path), torch.nn.Parameter(torch.zeros(24, 6))
    load_hub_weights(owned_shards([(QKV, parameter)], model=SMALL, layout=ONE_RANK), tmp_path)
    groups = [[hub["q"][6 * g : 6 * g + 6], hub["k"][3 * g : 3 * g + 3], hub["v"][3 * g : 3 * g + 3]] for g in range(2)]
    assert torch.equal(parameter.detach(), torch.cat(groups[0] + groups[1]))


def test_shards_are_live_views(tmp_path: Path) -> None:
    parameter = torch.nn.Parameter(torch.zeros(24, 6))
    shards = owned_shards([(QKV, parameter)], model=SMALL, layout=ONE_RANK)
    with torch.no_grad():
        parameter[6:9] = 5.0
    assert shards[1].shard.tensor == f"{PREFIX}k_proj.weight"
    assert shards[1].tensor.eq(5.0).all()
    assert not shards[1].tensor.requires_grad


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    _hub_files(tmp_path)
    (tmp_path / "a.safetensors").unlink()
    shards = owned_shards([(QKV, torch.zeros(24, 6))], model=SMALL, layout=ONE_RANK)
    with pytest.raises(InvalidInputError, match=r"'model\.layers\.0\.self_attn\.q_proj\.weight' is missing"):
        load_hub_weights(shards, tmp_path)


def test_a_wrong_shape_gives_both_shapes(tmp_path: Path) -> None:
    _hub_files(tmp_path, k=torch.zeros(4, 6))
    shards = owned_shards([(QKV, torch.zeros(24, 6))], model=SMALL, layout=ONE_RANK)
    with pytest.raises(InvalidInputError, match=r"has shape \(4, 6\), but config\.json wants \(6, 6\)"):
        load_hub_weights(shards, tmp_path)


def test_a_folder_without_weights_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match=r"holds no \.safetensors file"):
        load_hub_weights([], tmp_path)


def test_a_broken_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.safetensors").write_bytes(b"not safetensors")
    with pytest.raises(InvalidInputError, match="cannot be read"):
        load_hub_weights([], tmp_path)
