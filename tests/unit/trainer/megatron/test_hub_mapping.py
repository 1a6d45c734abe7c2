from dataclasses import replace

import pytest
import torch

from services.common.errors import InvalidInputError
from services.trainer.megatron.hub_mapping import HubBlock, RankLayout, hub_blocks
from services.weights.transfer import Box
from tests.unit.trainer.megatron.model_shapes import ONE_RANK, SMALL

TP_SECOND = replace(ONE_RANK, tp_rank=1, tp_size=2, etp_rank=1, etp_size=2)


def _blocks(name: str, shape: tuple[int, ...], layout: RankLayout = ONE_RANK) -> tuple[HubBlock, ...]:
    return hub_blocks(name, shape, model=SMALL, layout=layout)


def _row_ranges(blocks: tuple[HubBlock, ...]) -> list[tuple[str, int, int, int]]:
    """(last parts of the hub name, first hub row, first local row, rows)."""
    return [(".".join(b.tensor.split(".")[-2:]), b.box.starts[0], b.local.starts[0], b.box.sizes[0]) for b in blocks]


def test_queries_keys_and_values_are_taken_apart_per_kv_group() -> None:
    # 4 heads, 2 groups, head dim 3: each group holds 6 query rows, 3 key rows, 3 value rows.
    blocks = _blocks("decoder.layers.0.self_attention.linear_qkv.weight", (24, 6))
    assert _row_ranges(blocks) == [
        ("q_proj.weight", 0, 0, 6),
        ("k_proj.weight", 0, 6, 3),
        ("v_proj.weight", 0, 9, 3),
        ("q_proj.weight", 6, 12, 6),
        ("k_proj.weight", 3, 18, 3),
        ("v_proj.weight", 3, 21, 3),
    ]
    assert {b.tensor_shape for b in blocks} == {(12, 6), (6, 6)}


def test_the_second_tensor_parallel_rank_holds_the_second_group() -> None:
    blocks = _blocks("decoder.layers.0.self_attention.linear_qkv.bias", (12,), TP_SECOND)
    assert _row_ranges(blocks) == [
        ("q_proj.bias", 6, 0, 6),
        ("k_proj.bias", 3, 6, 3),
        ("v_proj.bias", 3, 9, 3),
    ]
    assert blocks[0].tensor_shape == (12,)


def test_gate_and_up_are_halves_on_each_rank() -> None:
    # FFN 8 over two ranks: 4 gate rows, then 4 up rows, of hub rows 4 to 8.
    blocks = _blocks("decoder.layers.0.mlp.linear_fc1.weight", (8, 6), TP_SECOND)
    assert _row_ranges(blocks) == [("gate_proj.weight", 4, 0, 4), ("up_proj.weight", 4, 4, 4)]
    assert blocks[0].tensor_shape == (8, 6)


def test_the_second_projection_is_split_by_columns() -> None:
    (block,) = _blocks("decoder.layers.0.mlp.linear_fc2.weight", (6, 4), TP_SECOND)
    assert block == HubBlock(
        tensor="model.layers.0.mlp.down_proj.weight",
        tensor_shape=(6, 8),
        box=Box(starts=(0, 4), sizes=(6, 4)),
        local=Box(starts=(0, 0), sizes=(6, 4)),
    )


@pytest.mark.parametrize("name", ["local_experts.1.linear_fc2.weight", "linear_fc2.weight1"])
def test_an_expert_has_its_global_number(name: str) -> None:
    # 4 experts over two ranks: the second rank's local expert 1 is expert 3.
    layout = replace(ONE_RANK, ep_rank=1, ep_size=2)
    (block,) = _blocks(f"decoder.layers.1.mlp.experts.{name}", (6, 4), layout)
    assert block.tensor == "model.layers.1.mlp.experts.3.down_proj.weight"
    assert block.tensor_shape == (6, 4)


def test_experts_are_split_by_their_own_tensor_parallel_size() -> None:
    layout = replace(TP_SECOND, etp_rank=0, etp_size=1)
    gate, up = _blocks("decoder.layers.1.mlp.experts.local_experts.0.linear_fc1.weight", (8, 6), layout)
    assert gate.tensor_shape == up.tensor_shape == (4, 6)
    assert (gate.box, up.local) == (Box(starts=(0, 0), sizes=(4, 6)), Box(starts=(4, 0), sizes=(4, 6)))


def test_rows_of_vocabulary_padding_are_left_out() -> None:
    # 7 entries over two ranks of 4 rows: the second holds entries 4, 5, 6 and one row of padding.
    (block,) = _blocks("output_layer.weight", (4, 6), TP_SECOND)
    assert (block.tensor, block.tensor_shape) == ("lm_head.weight", (7, 6))
    assert (block.box.starts, block.local.sizes) == ((4, 0), (3, 6))


def test_a_rank_with_padding_alone_holds_nothing() -> None:
    layout = replace(ONE_RANK, tp_rank=7, tp_size=8)
    assert _blocks("embedding.word_embeddings.weight", (1, 6), layout) == ()


@pytest.mark.parametrize(
    ("name", "hub"),
    [
        ("decoder.final_layernorm.weight", "model.norm.weight"),
        ("decoder.layers.1.input_layernorm.weight", "model.layers.1.input_layernorm.weight"),
        ("decoder.layers.1.self_attention.linear_qkv.layer_norm_weight", "model.layers.1.input_layernorm.weight"),
        ("decoder.layers.1.pre_mlp_layernorm.weight", "model.layers.1.post_attention_layernorm.weight"),
        ("decoder.layers.0.mlp.linear_fc1.layer_norm_weight", "model.layers.0.post_attention_layernorm.weight"),
        ("decoder.layers.1.mlp.router.expert_bias", "model.layers.1.mlp.gate.e_score_correction_bias"),
        ("mtp.layers.0.hnorm.weight", "model.layers.2.hnorm.weight"),
        ("mtp.layers.0.final_layernorm.weight", "model.layers.2.shared_head.norm.weight"),
        ("mtp.layers.0.transformer_layer.self_attention.q_layernorm.weight", "model.layers.2.self_attn.q_norm.weight"),
    ],
)
def test_a_vector_is_held_whole_on_every_rank(name: str, hub: str) -> None:
    (block,) = _blocks(name, (6,), TP_SECOND)
    assert (block.tensor, block.tensor_shape) == (hub, (6,))
    assert block.box == block.local == Box(starts=(0,), sizes=(6,))


@pytest.mark.parametrize("name", ["decoder.layers.0.mlp.linear_fc3.weight", "vision.weight"])
def test_an_unknown_parameter_is_refused(name: str) -> None:
    with pytest.raises(InvalidInputError, match="has no hub name"):
        _blocks(name, (6, 6))


@pytest.mark.parametrize("tp_size", [1, 2])
def test_the_blocks_of_all_ranks_put_the_hub_tensor_together(tp_size: int) -> None:
    hub = {part: torch.randn(rows, 6) for part, rows in (("q", 12), ("k", 6), ("v", 6))}
    found = {part: torch.full_like(tensor, float("nan")) for part, tensor in hub.items()}
    for rank in range(tp_size):
        layout = replace(ONE_RANK, tp_rank=rank, tp_size=tp_size)
        local = torch.full((24 // tp_size, 6), float("nan"))
        blocks = _blocks("decoder.layers.0.self_attention.linear_qkv.weight", (24 // tp_size, 6), layout)
        for block in blocks:
            local[block.local.slices] = hub[block.tensor.split("_proj")[0][-1]][block.box.slices]
        assert not local.isnan().any()
        for block in blocks:
            found[block.tensor.split("_proj")[0][-1]][block.box.slices] = local[block.local.slices]
    assert all(torch.equal(found[part], tensor) for part, tensor in hub.items())
