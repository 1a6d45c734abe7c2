"""The shape of a tiny GLM-4.5: its config.json and its tensors in the hub's naming.

Legend: H hidden size, V vocabulary, E experts.
"""

from collections.abc import Iterator
from dataclasses import dataclass

JsonValue = str | int | float | bool | None | list[str] | dict[str, str | float]


@dataclass(frozen=True, kw_only=True)
class TinyArchitecture:
    """Sizes of a tiny GLM-4.5 with one MTP layer; names as in config.json."""

    vocab_size: int
    """V."""
    hidden_size: int = 64
    """H."""
    intermediate_size: int = 128
    """Inner size of the dense feed-forward layer."""
    num_hidden_layers: int = 2
    """Decoder layers, the MTP layer not counted."""
    num_attention_heads: int = 4
    """Query heads."""
    num_key_value_heads: int = 2
    """Key and value heads."""
    head_dim: int = 16
    """Size of a head."""
    moe_intermediate_size: int = 64
    """Inner size of one expert and of the shared expert."""
    n_routed_experts: int = 8
    """E."""
    num_experts_per_tok: int = 2
    """Experts per token."""
    first_k_dense_replace: int = 1
    """Leading layers that are dense."""
    initializer_range: float = 0.1
    """Standard deviation of matrices. At 0.02 a model this small does not learn the task."""
    max_position_embeddings: int = 2048
    """Longest sequence, in tokens."""


@dataclass(frozen=True, kw_only=True)
class TensorShape:
    """One tensor of the checkpoint."""

    name: str
    """Hub name."""
    shape: tuple[int, ...]
    """Its shape; matrices have two dimensions, norms and biases one."""


def tensor_shapes(architecture: TinyArchitecture) -> Iterator[TensorShape]:
    """Every tensor of the checkpoint in a fixed order, the MTP layer last."""
    hidden, vocabulary = architecture.hidden_size, architecture.vocab_size
    yield TensorShape(name="model.embed_tokens.weight", shape=(vocabulary, hidden))
    for layer in range(architecture.num_hidden_layers):
        yield from _decoder_layer(architecture, layer)
    yield TensorShape(name="model.norm.weight", shape=(hidden,))
    yield TensorShape(name="lm_head.weight", shape=(vocabulary, hidden))
    yield from _mtp_layer(architecture)


def num_parameters(architecture: TinyArchitecture, *, include_mtp: bool) -> int:
    """Trained elements; the router's correction bias is a buffer and not counted."""
    mtp_prefix = _mtp_prefix(architecture)
    total = 0
    for tensor in tensor_shapes(architecture):
        if is_buffer(tensor.name) or (tensor.name.startswith(mtp_prefix) and not include_mtp):
            continue
        size = 1
        for length in tensor.shape:
            size *= length
        total += size
    return total


def is_buffer(name: str) -> bool:
    """True for the tensors that the optimizer never touches."""
    return name.endswith("e_score_correction_bias")


def hub_config(architecture: TinyArchitecture, *, end_token_id: int, pad_token_id: int) -> dict[str, JsonValue]:
    """The config.json that transformers, SGLang and the trainer read."""
    rope_theta, partial_rotary_factor = 10000.0, 0.5
    return {
        "architectures": ["Glm4MoeForCausalLM"],
        "model_type": "glm4_moe",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": None,
        "dtype": "float32",
        "eos_token_id": end_token_id,
        "pad_token_id": pad_token_id,
        "hidden_act": "silu",
        "n_group": 1,
        "topk_group": 1,
        "n_shared_experts": 1,
        "norm_topk_prob": True,
        "num_nextn_predict_layers": 1,
        "rms_norm_eps": 1e-5,
        "routed_scaling_factor": 1.0,
        "tie_word_embeddings": False,
        "use_cache": True,
        "use_qk_norm": True,
        # transformers 5 reads rope_parameters, older readers the two flat keys.
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": rope_theta,
            "partial_rotary_factor": partial_rotary_factor,
        },
        "rope_theta": rope_theta,
        "partial_rotary_factor": partial_rotary_factor,
        **_sizes(architecture),
    }


def _sizes(architecture: TinyArchitecture) -> dict[str, JsonValue]:
    return {
        "vocab_size": architecture.vocab_size,
        "hidden_size": architecture.hidden_size,
        "intermediate_size": architecture.intermediate_size,
        "num_hidden_layers": architecture.num_hidden_layers,
        "num_attention_heads": architecture.num_attention_heads,
        "num_key_value_heads": architecture.num_key_value_heads,
        "head_dim": architecture.head_dim,
        "moe_intermediate_size": architecture.moe_intermediate_size,
        "n_routed_experts": architecture.n_routed_experts,
        "num_experts_per_tok": architecture.num_experts_per_tok,
        "first_k_dense_replace": architecture.first_k_dense_replace,
        "initializer_range": architecture.initializer_range,
        "max_position_embeddings": architecture.max_position_embeddings,
    }


def _mtp_prefix(architecture: TinyArchitecture) -> str:
    return f"model.layers.{architecture.num_hidden_layers}."


def _mtp_layer(architecture: TinyArchitecture) -> Iterator[TensorShape]:
    prefix, hidden = _mtp_prefix(architecture), architecture.hidden_size
    yield TensorShape(name=f"{prefix}enorm.weight", shape=(hidden,))
    yield TensorShape(name=f"{prefix}hnorm.weight", shape=(hidden,))
    yield TensorShape(name=f"{prefix}eh_proj.weight", shape=(hidden, 2 * hidden))
    yield from _decoder_layer(architecture, architecture.num_hidden_layers)
    yield TensorShape(name=f"{prefix}shared_head.norm.weight", shape=(hidden,))


def _decoder_layer(architecture: TinyArchitecture, layer: int) -> Iterator[TensorShape]:
    prefix, hidden = f"model.layers.{layer}.", architecture.hidden_size
    yield TensorShape(name=f"{prefix}input_layernorm.weight", shape=(hidden,))
    yield from _attention(architecture, f"{prefix}self_attn.")
    yield TensorShape(name=f"{prefix}post_attention_layernorm.weight", shape=(hidden,))
    if layer < architecture.first_k_dense_replace:
        yield from _feed_forward(f"{prefix}mlp.", hidden=hidden, inner=architecture.intermediate_size)
    else:
        yield from _experts(architecture, f"{prefix}mlp.")


def _attention(architecture: TinyArchitecture, prefix: str) -> Iterator[TensorShape]:
    hidden, head = architecture.hidden_size, architecture.head_dim
    query, key_value = architecture.num_attention_heads * head, architecture.num_key_value_heads * head
    yield TensorShape(name=f"{prefix}q_proj.weight", shape=(query, hidden))
    yield TensorShape(name=f"{prefix}k_proj.weight", shape=(key_value, hidden))
    yield TensorShape(name=f"{prefix}v_proj.weight", shape=(key_value, hidden))
    yield TensorShape(name=f"{prefix}o_proj.weight", shape=(hidden, query))
    yield TensorShape(name=f"{prefix}q_norm.weight", shape=(head,))
    yield TensorShape(name=f"{prefix}k_norm.weight", shape=(head,))


def _feed_forward(prefix: str, *, hidden: int, inner: int) -> Iterator[TensorShape]:
    yield TensorShape(name=f"{prefix}gate_proj.weight", shape=(inner, hidden))
    yield TensorShape(name=f"{prefix}up_proj.weight", shape=(inner, hidden))
    yield TensorShape(name=f"{prefix}down_proj.weight", shape=(hidden, inner))


def _experts(architecture: TinyArchitecture, prefix: str) -> Iterator[TensorShape]:
    hidden, inner = architecture.hidden_size, architecture.moe_intermediate_size
    yield TensorShape(name=f"{prefix}gate.weight", shape=(architecture.n_routed_experts, hidden))
    yield TensorShape(name=f"{prefix}gate.e_score_correction_bias", shape=(architecture.n_routed_experts,))
    for expert in range(architecture.n_routed_experts):
        yield from _feed_forward(f"{prefix}experts.{expert}.", hidden=hidden, inner=inner)
    yield from _feed_forward(f"{prefix}shared_experts.", hidden=hidden, inner=inner)
