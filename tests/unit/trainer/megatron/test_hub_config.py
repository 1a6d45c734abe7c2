import json
from pathlib import Path

import pytest

from services.common.errors import ConfigError
from services.trainer.megatron.hub_config import ModelShape, read_model_shape
from tests.unit.trainer.megatron.model_shapes import glm_table


def _read(table: dict[str, object], folder: Path) -> ModelShape:
    (folder / "config.json").write_text(json.dumps(table))
    return read_model_shape(folder)


def test_glm_355b_is_read(tmp_path: Path) -> None:
    shape = _read(glm_table(), tmp_path)
    assert shape == ModelShape(
        num_layers=92,
        num_dense_layers=3,
        num_mtp_layers=1,
        hidden_size=5120,
        num_heads=96,
        num_kv_groups=8,
        head_dim=128,
        ffn_size=12288,
        expert_ffn_size=1536,
        shared_ffn_size=1536,
        num_experts=160,
        top_k=8,
        routed_scaling=2.5,
        vocab_size=151552,
        has_qkv_bias=True,
        has_qk_norm=True,
        rotary_share=0.5,
        rotary_base=1e6,
        norm_epsilon=1e-5,
        max_positions=131072,
    )


def test_rotary_numbers_are_found_where_transformers_5_writes_them(tmp_path: Path) -> None:
    table = glm_table()
    del table["partial_rotary_factor"], table["rope_theta"], table["rope_scaling"]
    table["rope_parameters"] = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25}
    shape = _read(table, tmp_path)
    assert (shape.rotary_base, shape.rotary_share) == (1e4, 0.25)


def test_a_model_without_mtp_layer_has_none(tmp_path: Path) -> None:
    table = glm_table()
    del table["num_nextn_predict_layers"]
    assert _read(table, tmp_path).num_mtp_layers == 0


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("model_type", "llama", "model_type is 'llama', but the trainer supports only 'glm4_moe'"),
        ("n_group", 8, "n_group is 8"),
        ("norm_topk_prob", False, "norm_topk_prob is False"),
        ("tie_word_embeddings", True, "tie_word_embeddings is True"),
        ("num_experts_per_tok", 1, "num_experts_per_tok is 1, but the trainer needs 2 or more"),
        ("num_nextn_predict_layers", 2, "num_nextn_predict_layers is 2"),
        ("rope_scaling", {"rope_type": "yarn"}, "rope_type is 'yarn'"),
        ("vocab_size", "many", "vocab_size is 'many', but a number is wanted"),
    ],
)
def test_an_unsupported_model_is_refused_by_name(key: str, value: object, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        _read({**glm_table(), key: value}, tmp_path)
    assert message in str(caught.value)


def test_a_missing_key_is_named(tmp_path: Path) -> None:
    table = glm_table()
    del table["n_routed_experts"]
    with pytest.raises(ConfigError, match="key 'n_routed_experts' is missing"):
        _read(table, tmp_path)


def test_a_folder_without_config_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"config\.json: cannot be read as JSON"):
        read_model_shape(tmp_path)
