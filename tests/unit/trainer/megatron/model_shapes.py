"""Model shapes and config tables for the unit tests."""

from services.trainer.megatron.hub_config import ModelShape
from services.trainer.megatron.hub_mapping import RankLayout

ONE_RANK = RankLayout(tp_rank=0, tp_size=1, ep_rank=0, ep_size=1, etp_rank=0, etp_size=1)

SMALL = ModelShape(
    num_layers=2,
    num_dense_layers=1,
    num_mtp_layers=1,
    hidden_size=6,
    num_heads=4,
    num_kv_groups=2,
    head_dim=3,
    ffn_size=8,
    expert_ffn_size=4,
    shared_ffn_size=4,
    num_experts=4,
    top_k=2,
    routed_scaling=1.0,
    vocab_size=7,
    has_qkv_bias=True,
    has_qk_norm=True,
    rotary_share=0.5,
    rotary_base=1e4,
    norm_epsilon=1e-5,
    max_positions=32,
)


def glm_table() -> dict[str, object]:
    """The config.json of GLM-4.5 355B, the keys that matter."""
    return {
        "model_type": "glm4_moe",
        "hidden_act": "silu",
        "num_hidden_layers": 92,
        "first_k_dense_replace": 3,
        "num_nextn_predict_layers": 1,
        "hidden_size": 5120,
        "num_attention_heads": 96,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "intermediate_size": 12288,
        "moe_intermediate_size": 1536,
        "n_shared_experts": 1,
        "n_routed_experts": 160,
        "num_experts_per_tok": 8,
        "routed_scaling_factor": 2.5,
        "n_group": 1,
        "topk_group": 1,
        "norm_topk_prob": True,
        "vocab_size": 151552,
        "attention_bias": True,
        "use_qk_norm": True,
        "partial_rotary_factor": 0.5,
        "rope_theta": 1000000,
        "rope_scaling": None,
        "rms_norm_eps": 1e-05,
        "max_position_embeddings": 131072,
        "tie_word_embeddings": False,
    }
