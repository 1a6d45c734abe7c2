"""The cost of sequences against independent counts."""

import pytest

from services.trainer.megatron.hub_config import ModelShape
from services.trainer.sequence_cost import BY_TOKENS, SequenceCost, forward_work

HEAD_355B = 151552 * 5120


def shape(**sizes: int) -> ModelShape:
    """The 355B model of the GLM-4.5 family unless sizes say otherwise."""
    table: dict[str, int] = {
        "num_layers": 92,
        "num_dense_layers": 3,
        "num_mtp_layers": 0,
        "hidden_size": 5120,
        "num_heads": 96,
        "num_kv_groups": 8,
        "head_dim": 128,
        "ffn_size": 12288,
        "expert_ffn_size": 1536,
        "shared_ffn_size": 1536,
        "num_experts": 160,
        "top_k": 8,
        "vocab_size": 151552,
        **sizes,
    }
    return ModelShape(
        routed_scaling=2.5,
        has_qkv_bias=True,
        has_qk_norm=True,
        rotary_share=0.5,
        rotary_base=1e6,
        norm_epsilon=1e-5,
        max_positions=131072,
        **table,
    )


def test_the_linear_part_is_the_active_parameters_without_the_embedding() -> None:
    # Counted from the checkpoints' tensor shapes: 32.9 B of 355 B and 12.8 B of 106 B are active.
    assert forward_work(shape()).per_token == pytest.approx(32.9e9, rel=2e-3)
    air = shape(
        num_layers=46,
        num_dense_layers=1,
        hidden_size=4096,
        ffn_size=10944,
        expert_ffn_size=1408,
        shared_ffn_size=1408,
        num_experts=128,
    )
    assert forward_work(air).per_token == pytest.approx(12.8e9, rel=4e-3)


def test_a_model_small_enough_to_count_by_hand() -> None:
    small = shape(
        num_layers=2,
        num_dense_layers=1,
        hidden_size=4,
        num_heads=2,
        num_kv_groups=1,
        head_dim=3,
        ffn_size=5,
        expert_ffn_size=7,
        shared_ffn_size=2,
        num_experts=8,
        top_k=2,
        vocab_size=11,
    )
    # attention: 4x6 queries, 4x3 keys, 4x3 values, 6x4 output = 72 a layer; dense 3x4x5 = 60;
    # experts 3x4x(2x7 + 2) = 192 and router 4x8 = 32; head 4x11 = 44
    assert forward_work(small).per_token == 2 * 72 + 60 + 192 + 32 + 44
    # scores and values: 2 heads of 3, twice, over half of the sequence, in two layers
    assert forward_work(small).per_token_squared == 2 * 6


def test_the_mtp_layer_adds_a_layer_a_head_and_its_projection() -> None:
    with_mtp, without = forward_work(shape(num_mtp_layers=1)), forward_work(shape())
    attention = 5120 * (2 * 12288 + 2 * 1024)
    experts = 3 * 5120 * 9 * 1536 + 5120 * 160
    assert with_mtp.per_token - without.per_token == 2 * 5120 * 5120 + attention + experts + HEAD_355B
    assert with_mtp.per_token_squared / without.per_token_squared == pytest.approx(93 / 92)


def test_costs_of_sequences() -> None:
    assert SequenceCost(per_token=3.0, per_token_squared=0.5).of(4) == 20.0
    assert [BY_TOKENS.of(n) for n in (0, 1, 4096)] == [0.0, 1.0, 4096.0]
    # attention is as much work as all matrices together at 29 thousand tokens: 32.85e9 / (92 x 12288)
    work = forward_work(shape())
    assert work.per_token / work.per_token_squared == pytest.approx(29_060, rel=0.001)
