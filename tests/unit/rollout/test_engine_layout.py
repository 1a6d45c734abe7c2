"""The layout table against values worked out by hand."""

from collections.abc import Mapping

import pytest

from services.common.errors import ConfigError
from services.common.tiny_model.architecture import TinyArchitecture, hub_config, tensor_shapes
from services.rollout.engine_layout import engine_rank_layout
from services.weights.plan import check_layouts
from services.weights.transfer import EngineRankLayout, EngineTensor

TINY = hub_config(TinyArchitecture(vocab_size=64), end_token_id=0, pad_token_id=1)
Blocks = list[tuple[str, tuple[int, ...], tuple[int, ...], tuple[int, ...]]]


def layout(
    *, tp: int = 1, rank: int = 0, ep: int = 1, has_draft: bool = True, **changes: int | bool
) -> EngineRankLayout:
    config: Mapping[str, object] = {**TINY, **changes}
    return engine_rank_layout(config, tp=tp, rank=rank, ep=ep, dtype="bfloat16", has_draft=has_draft)


def tensor(of: EngineRankLayout, name: str, model: str = "target") -> EngineTensor:
    (found,) = [tensor for tensor in of.tensors if (tensor.model, tensor.name) == (model, name)]
    return found


def blocks(of: EngineTensor) -> Blocks:
    """(hub tensor, first index there, first index here, sizes here) of each slice."""
    return [(part.tensor, part.source.starts, part.destination.starts, part.destination.sizes) for part in of.slices]


@pytest.mark.parametrize(("tp", "ep"), [(1, 1), (2, 1), (2, 2), (4, 1), (4, 2)])
def test_every_hub_element_is_used_and_layouts_are_sound(tp: int, ep: int) -> None:
    ranks = [layout(tp=tp, rank=rank, ep=ep) for rank in range(tp)]
    check_layouts(ranks)
    covered: dict[str, set[tuple[int, ...]]] = {}
    for rank in ranks:
        for part in (part for tensor in rank.tensors for part in tensor.slices):
            spans = [range(s, s + n) for s, n in zip(part.source.starts, part.source.sizes, strict=True)]
            # Corners and row starts are enough to see a missing or shifted block.
            rows = {(row, spans[-1][0], spans[-1][-1]) for row in spans[0]}
            covered.setdefault(part.tensor, set()).update(rows)
    for shape in tensor_shapes(TinyArchitecture(vocab_size=64)):
        seen = covered.pop(shape.name)
        assert {row for row, _, _ in seen} == set(range(shape.shape[0])), shape.name
        assert {0, shape.shape[-1] - 1} <= {edge for _, *edges in seen for edge in edges}, shape.name
    assert not covered


def test_queries_keys_and_values_are_stacked_per_rank() -> None:
    # 4 heads and 2 kv heads of 16: rank 1 of 2 has queries 32..63, key head 1 (16..31), value head 1.
    qkv = tensor(layout(tp=2, rank=1), "model.layers.0.self_attn.qkv_proj.weight")
    source = "model.layers.0.self_attn"
    assert qkv.shape == (64, 64)
    assert blocks(qkv) == [
        (f"{source}.q_proj.weight", (32, 0), (0, 0), (32, 64)),
        (f"{source}.k_proj.weight", (16, 0), (32, 0), (16, 64)),
        (f"{source}.v_proj.weight", (16, 0), (48, 0), (16, 64)),
    ]


def test_neighbouring_ranks_share_a_key_head() -> None:
    # 4 ranks and 2 kv heads: ranks 2 and 3 hold head 1.
    for rank in (2, 3):
        qkv = tensor(layout(tp=4, rank=rank), "model.layers.0.self_attn.qkv_proj.weight")
        assert [(start, size) for _, start, _, size in blocks(qkv)] == [
            ((16 * rank, 0), (16, 64)),
            ((16, 0), (16, 64)),
            ((16, 0), (16, 64)),
        ]


def test_attention_bias_follows_its_weight() -> None:
    bias = tensor(layout(tp=2, rank=1, attention_bias=True), "model.layers.1.self_attn.qkv_proj.bias")
    assert bias.shape == (64,)
    assert [(start, here) for _, start, here, _ in blocks(bias)] == [((32,), (0,)), ((16,), (32,)), ((16,), (48,))]


def test_experts_are_spread_over_groups_and_cut_within() -> None:
    # tp 4, ep 2: rank 3 is in group 1 (experts 4..7) with the second half, 32 of 64 inner indices.
    of = layout(tp=4, rank=3, ep=2)
    w13 = tensor(of, "model.layers.1.mlp.experts.w13_weight")
    source = "model.layers.1.mlp.experts"
    # Inner sizes are padded to a multiple of 32 x tp = 128 before they are cut, so each half has 64 rows, 0 of them
    # real for the second half of a 64-wide expert.
    assert w13.shape == (4, 128, 64)
    assert blocks(w13) == []
    first = tensor(layout(tp=4, rank=2, ep=2), "model.layers.1.mlp.experts.w13_weight")
    assert blocks(first)[:3] == [
        (f"{source}.4.gate_proj.weight", (0, 0), (0, 0, 0), (1, 64, 64)),
        (f"{source}.4.up_proj.weight", (0, 0), (0, 64, 0), (1, 64, 64)),
        (f"{source}.5.gate_proj.weight", (0, 0), (1, 0, 0), (1, 64, 64)),
    ]
    w2 = tensor(layout(tp=2, rank=1), "model.layers.1.mlp.experts.w2_weight")
    assert w2.shape == (8, 64, 32)
    assert blocks(w2)[7] == (f"{source}.7.down_proj.weight", (0, 32), (7, 0, 0), (1, 64, 32))


def test_dense_and_shared_feed_forward_are_cut_alike() -> None:
    of = layout(tp=2, rank=1)
    dense = tensor(of, "model.layers.0.mlp.gate_up_proj.weight")
    assert dense.shape == (128, 64)
    assert [(start, here) for _, start, here, _ in blocks(dense)] == [((64, 0), (0, 0)), ((64, 0), (64, 0))]
    shared = tensor(of, "model.layers.1.mlp.shared_experts.down_proj.weight")
    assert (shared.shape, blocks(shared)[0][1]) == ((64, 32), (0, 32))


def test_router_is_float32_and_everything_else_is_not() -> None:
    for entry in layout().tensors:
        is_router = ".mlp.gate." in entry.name
        assert entry.dtype == ("float32" if is_router else "bfloat16"), entry.name
    assert sum(".mlp.gate." in entry.name for entry in layout().tensors) == 4


def test_vocabulary_is_padded_and_its_tail_unfilled() -> None:
    # 100 entries are padded to 128; rank 1 of 2 has rows 64..99 and 28 empty ones.
    head = tensor(layout(tp=2, rank=1, vocab_size=100), "lm_head.weight")
    assert head.shape == (64, 64)
    assert blocks(head) == [("lm_head.weight", (64, 0), (0, 0), (36, 64))]
    # 40 entries are padded to 64; rank 1 of 2 has rows 32..39. With 20 it has none.
    assert blocks(tensor(layout(tp=2, rank=1, vocab_size=40), "lm_head.weight"))[0][3] == (8, 64)
    assert blocks(tensor(layout(tp=2, rank=1, vocab_size=20), "lm_head.weight")) == []


def test_draft_is_the_layer_after_the_last_and_shares_the_vocabulary() -> None:
    of = layout()
    draft = {entry.name: entry for entry in of.tensors if entry.model == "draft"}
    assert blocks(draft["model.eh_proj.weight"]) == [("model.layers.2.eh_proj.weight", (0, 0), (0, 0), (64, 128))]
    assert blocks(draft["model.shared_head.norm.weight"])[0][0] == "model.layers.2.shared_head.norm.weight"
    assert blocks(draft["model.decoder.mlp.gate.weight"])[0][0] == "model.layers.2.mlp.gate.weight"
    assert not {"model.embed_tokens.weight", "lm_head.weight"} & set(draft)
    assert all(entry.model == "target" for entry in layout(has_draft=False).tensors)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tp": 3}, "num_attention_heads is 4, wanted a multiple of 3"),
        ({"tp": 2, "ep": 2, "n_routed_experts": 7}, "n_routed_experts is 7, wanted a multiple of 2"),
        ({"tp": 2, "num_key_value_heads": 3}, "num_key_value_heads is 3"),
        ({"tie_word_embeddings": True}, "tie_word_embeddings is true"),
        ({"num_nextn_predict_layers": 0}, "speculation.enabled=false"),
    ],
)
def test_impossible_layouts_are_refused(changes: Mapping[str, int | bool], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        layout(**changes)


def test_missing_key_is_named() -> None:
    config = {key: value for key, value in TINY.items() if key != "head_dim"}
    with pytest.raises(ConfigError, match="head_dim=None"):
        engine_rank_layout(config, tp=1, rank=0, ep=1, dtype="float32", has_draft=False)
