import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from services.common.errors import ConfigError
from services.common.tiny_model.architecture import num_parameters
from services.common.tiny_model.making import PRESETS, make_tiny_model


def _digests(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.iterdir())}


def test_task_model_has_168832_parameters_without_the_mtp_layer():
    # embedding and head 2 x 64 x 64, final norm 64; two attentions of 12,448 with their norms; dense 3 x 64 x 128;
    # eight experts and a shared one of 3 x 64 x 64, router 8 x 64
    assert 8192 + 64 + 2 * 12448 + 24576 + 9 * 12288 + 512 == 168832
    assert num_parameters(PRESETS["tiny-task"].architecture, include_mtp=False) == 168832


def test_mtp_layer_adds_a_moe_layer_a_projection_and_three_norms():
    architecture = PRESETS["tiny-task"].architecture
    added = num_parameters(architecture, include_mtp=True) - num_parameters(architecture, include_mtp=False)
    assert added == 12448 + 9 * 12288 + 512 + 64 * 128 + 3 * 64


def test_same_seed_gives_the_same_bytes(tmp_path):
    for name in ("first", "second"):
        make_tiny_model("tiny-task", seed=3, folder=tmp_path / name)
    assert _digests(tmp_path / "first") == _digests(tmp_path / "second")


def test_other_seed_changes_the_weights_only(tmp_path):
    for seed in (0, 1):
        make_tiny_model("tiny-task", seed=seed, folder=tmp_path / str(seed))
    first, second = _digests(tmp_path / "0"), _digests(tmp_path / "1")
    assert [name for name in first if first[name] != second[name]] == ["model.safetensors"]


def test_weights_are_normal_norms_one_and_correction_bias_zero(tmp_path):
    make_tiny_model("tiny-task", seed=0, folder=tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    assert all(tensor.dtype == np.float32 for tensor in weights.values())
    expert = np.concatenate(
        [weights[f"model.layers.1.mlp.experts.{index}.up_proj.weight"].ravel() for index in range(8)]
    )
    # 32,768 draws: the standard error of the deviation is 0.1 / sqrt(65,536) = 0.0004
    assert expert.std() == pytest.approx(0.1, abs=0.002)
    assert expert.mean() == pytest.approx(0.0, abs=0.003)
    assert weights["model.layers.2.enorm.weight"].tolist() == [1.0] * 64
    assert weights["model.layers.1.mlp.gate.e_score_correction_bias"].tolist() == [0.0] * 8
    assert weights["model.layers.2.eh_proj.weight"].shape == (64, 128)
    assert "model.layers.2.embed_tokens.weight" not in weights


def test_config_describes_glm_with_one_mtp_layer(tmp_path):
    make_tiny_model("tiny-byte", seed=0, folder=tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["architectures"] == ["Glm4MoeForCausalLM"]
    assert config["num_nextn_predict_layers"] == 1
    assert config["rope_parameters"]["rope_theta"] == config["rope_theta"] == 10000.0
    assert config["vocab_size"] == 320
    assert config["max_position_embeddings"] == 2048
    assert json.loads((tmp_path / "generation_config.json").read_text())["eos_token_id"] == 0


def test_unknown_preset_is_refused_with_the_known_ones(tmp_path):
    with pytest.raises(ConfigError, match="'tiny-huge'; wanted one of tiny-byte, tiny-task"):
        make_tiny_model("tiny-huge", seed=0, folder=tmp_path)


def test_folder_that_cannot_be_made_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be written"):
        make_tiny_model("tiny-task", seed=0, folder=tmp_path / "file" / "model")
