"""The shape of a GLM-4.5 model as its hub config.json gives it."""

import json
from dataclasses import dataclass
from pathlib import Path

from services.common.errors import ConfigError

JsonValue = object


@dataclass(frozen=True, kw_only=True)
class ModelShape:
    """The numbers that decide the model; names follow Megatron where the hub's differ."""

    num_layers: int
    """Decoder layers, without the MTP layer."""
    num_dense_layers: int
    """First layers that have a plain feed-forward network."""
    num_mtp_layers: int
    """0 or 1."""
    hidden_size: int
    """Width of the residual stream."""
    num_heads: int
    """Query heads."""
    num_kv_groups: int
    """Key and value heads."""
    head_dim: int
    """Width of a head."""
    ffn_size: int
    """Inner width of dense layers."""
    expert_ffn_size: int
    """Inner width of one routed expert."""
    shared_ffn_size: int
    """Inner width of all shared experts together; 0 without them."""
    num_experts: int
    """Routed experts of a layer."""
    top_k: int
    """Experts of a token."""
    routed_scaling: float
    """Factor on the routed experts' normalised weights."""
    vocab_size: int
    """Rows of embedding and head."""
    has_qkv_bias: bool
    """Whether the query, key and value projections have a bias."""
    has_qk_norm: bool
    """Whether queries and keys are normalised per head."""
    rotary_share: float
    """Share of the head that is rotated."""
    rotary_base: float
    """Base of the rotary frequencies."""
    norm_epsilon: float
    """Epsilon of every RMS norm."""
    max_positions: int
    """Longest sequence."""


def read_model_shape(model_dir: Path) -> ModelShape:
    """The shape in model_dir/config.json.

    Raises:
        ConfigError: no readable config.json, a missing key, or a model that is not supported.
    """
    path = model_dir / "config.json"
    try:
        table = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{path}: cannot be read as JSON ({error}); give a folder with a GLM-4.5 config.json"
        ) from error
    try:
        _check_supported(table, path)
        return _shape(table)
    except KeyError as error:
        raise ConfigError(f"{path}: key {error} is missing; give a GLM-4.5 (glm4_moe) config.json") from error


def _check_supported(table: dict[str, JsonValue], path: Path) -> None:
    wanted: dict[str, JsonValue] = {
        "model_type": "glm4_moe",
        "hidden_act": "silu",
        "n_group": 1,
        "topk_group": 1,
        "norm_topk_prob": True,
        "tie_word_embeddings": False,
    }
    for key, value in wanted.items():
        if table.get(key, value) != value:
            raise ConfigError(
                f"{path}: {key} is {table[key]!r}, but the trainer supports only {value!r}; use such a model"
            )
    rope = table.get("rope_parameters") or table.get("rope_scaling") or {}
    assert isinstance(rope, dict)
    if rope.get("rope_type", "default") != "default":
        raise ConfigError(f"{path}: rope_type is {rope['rope_type']!r}, but the trainer supports only 'default'")
    if table["num_experts_per_tok"] == 1:
        # Megatron does not normalise the weight of a single expert, the hub's model does.
        raise ConfigError(f"{path}: num_experts_per_tok is 1, but the trainer needs 2 or more; use such a model")
    if table.get("num_nextn_predict_layers", 0) not in (0, 1):
        raise ConfigError(
            f"{path}: num_nextn_predict_layers is {table['num_nextn_predict_layers']!r}, "
            "but the trainer supports 0 or 1; keep one MTP layer"
        )


def _shape(table: dict[str, JsonValue]) -> ModelShape:
    rope = table.get("rope_parameters") or table
    assert isinstance(rope, dict)
    heads, hidden = _int(table, "num_attention_heads"), _int(table, "hidden_size")
    expert_ffn = _int(table, "moe_intermediate_size")
    return ModelShape(
        num_layers=_int(table, "num_hidden_layers"),
        num_dense_layers=_int(table, "first_k_dense_replace"),
        num_mtp_layers=_int(table, "num_nextn_predict_layers", 0),
        hidden_size=hidden,
        num_heads=heads,
        num_kv_groups=_int(table, "num_key_value_heads"),
        head_dim=_int(table, "head_dim", hidden // heads),
        ffn_size=_int(table, "intermediate_size"),
        expert_ffn_size=expert_ffn,
        shared_ffn_size=expert_ffn * _int(table, "n_shared_experts", 0),
        num_experts=_int(table, "n_routed_experts"),
        top_k=_int(table, "num_experts_per_tok"),
        routed_scaling=_float(table, "routed_scaling_factor"),
        vocab_size=_int(table, "vocab_size"),
        has_qkv_bias=bool(table["attention_bias"]),
        has_qk_norm=bool(table["use_qk_norm"]),
        rotary_share=_float(rope if "partial_rotary_factor" in rope else table, "partial_rotary_factor"),
        rotary_base=_float(rope, "rope_theta"),
        norm_epsilon=_float(table, "rms_norm_eps"),
        max_positions=_int(table, "max_position_embeddings"),
    )


def _int(table: dict[str, JsonValue], key: str, default: int | None = None) -> int:
    return int(_float(table, key, default))


def _float(table: dict[str, JsonValue], key: str, default: float | None = None) -> float:
    value = table[key] if default is None else table.get(key, default)
    if not isinstance(value, int | float):
        raise ConfigError(f"config.json: {key} is {value!r}, but a number is wanted; give a GLM-4.5 config.json")
    return float(value)
