"""Which block of which hub tensor each Megatron parameter of a rank holds. Pure: names, shapes and boxes.

The one mapping serves both ways: loading copies hub blocks into parameters, publishing offers parameters as hub blocks.
Under tensor parallelism Megatron interleaves query, key and value rows per KV group, and keeps [gate; up] together on
each rank; a block never crosses such a seam, so every block is a plain slice on both sides.
Both of Megatron's naming schemes are understood, the local layers' and Transformer Engine's.
"""

import re
from dataclasses import dataclass

from services.common.errors import InvalidInputError
from services.trainer.megatron.hub_config import ModelShape
from services.weights.transfer import Box


@dataclass(frozen=True, kw_only=True)
class RankLayout:
    """A rank's place in the layout."""

    tp_rank: int
    """Place among the tensor-parallel ranks."""
    tp_size: int
    """Tensor-parallel ranks."""
    ep_rank: int
    """Place among the expert-parallel ranks."""
    ep_size: int
    """Expert-parallel ranks."""
    etp_rank: int
    """Place among the expert-tensor-parallel ranks."""
    etp_size: int
    """Expert-tensor-parallel ranks."""


@dataclass(frozen=True, kw_only=True)
class HubBlock:
    """A block of a hub tensor and where it lies in a parameter of the rank."""

    tensor: str
    """Hub name."""
    tensor_shape: tuple[int, ...]
    """Shape of the whole hub tensor."""
    box: Box
    """The block of the hub tensor."""
    local: Box
    """The same block in the parameter; equal sizes."""


@dataclass(frozen=True, kw_only=True)
class _Split:
    """A rank's share of a dimension."""

    rank: int
    size: int


_WHOLE = {
    "input_layernorm.weight": "input_layernorm.weight",
    "self_attention.linear_qkv.layer_norm_weight": "input_layernorm.weight",
    "pre_mlp_layernorm.weight": "post_attention_layernorm.weight",
    "mlp.linear_fc1.layer_norm_weight": "post_attention_layernorm.weight",
    "self_attention.q_layernorm.weight": "self_attn.q_norm.weight",
    "self_attention.k_layernorm.weight": "self_attn.k_norm.weight",
    "mlp.router.weight": "mlp.gate.weight",
    "mlp.router.expert_bias": "mlp.gate.e_score_correction_bias",
}
_COLUMNS = {
    "self_attention.linear_proj.weight": "self_attn.o_proj.weight",
    "mlp.linear_fc2.weight": "mlp.down_proj.weight",
    "mlp.shared_experts.linear_fc2.weight": "mlp.shared_experts.down_proj.weight",
}
_GATED = {
    "mlp.linear_fc1.weight": "mlp.",
    "mlp.shared_experts.linear_fc1.weight": "mlp.shared_experts.",
}
_VOCABULARY = {
    "embedding.word_embeddings.weight": "model.embed_tokens.weight",
    "output_layer.weight": "lm_head.weight",
}
_MTP_WHOLE = {
    "enorm.weight": "enorm.weight",
    "hnorm.weight": "hnorm.weight",
    "final_layernorm.weight": "shared_head.norm.weight",
}
_LAYER = re.compile(r"decoder\.layers\.(\d+)\.(.+)")
_MTP_LAYER = re.compile(r"mtp\.layers\.(\d+)\.(.+)")
_EXPERT = re.compile(r"mlp\.experts\.(?:local_experts\.(\d+)\.linear_fc([12])\.weight|linear_fc([12])\.weight(\d+))")


def hub_blocks(name: str, shape: tuple[int, ...], *, model: ModelShape, layout: RankLayout) -> tuple[HubBlock, ...]:
    """The hub blocks of one parameter or expert bias, in the order they lie in it; rows of padding are left out.

    Args:
        name: Megatron name; the MTP block's names carry the prefix "mtp.".
        shape: its shape on this rank.

    Raises:
        InvalidInputError: the name is unknown.
    """
    tensor_parallel = _Split(rank=layout.tp_rank, size=layout.tp_size)
    if name in _VOCABULARY:
        return _rows(_VOCABULARY[name], shape, tensor_parallel, num_rows=model.vocab_size)
    if name == "decoder.final_layernorm.weight":
        return _whole("model.norm.weight", shape)
    if found := _LAYER.fullmatch(name):
        return _layer_blocks(f"model.layers.{found[1]}.", found[2], shape, model=model, layout=layout)
    if found := _MTP_LAYER.fullmatch(name):
        prefix = f"model.layers.{model.num_layers + int(found[1])}."
        part = found[2]
        if part in _MTP_WHOLE:
            return _whole(prefix + _MTP_WHOLE[part], shape)
        if part == "eh_proj.weight":
            return _rows(prefix + part, shape, tensor_parallel, num_rows=model.hidden_size)
        return _layer_blocks(prefix, part.removeprefix("transformer_layer."), shape, model=model, layout=layout)
    raise _unknown(name)


def _layer_blocks(
    prefix: str, part: str, shape: tuple[int, ...], *, model: ModelShape, layout: RankLayout
) -> tuple[HubBlock, ...]:
    split = _Split(rank=layout.tp_rank, size=layout.tp_size)
    if part in _WHOLE:
        return _whole(prefix + _WHOLE[part], shape)
    if part in _COLUMNS:
        return _columns(prefix + _COLUMNS[part], shape, split)
    if part in _GATED:
        return _gated(prefix + _GATED[part], shape, split)
    if part in ("self_attention.linear_qkv.weight", "self_attention.linear_qkv.bias"):
        return _query_key_value(prefix, part.rpartition(".")[2], shape, split, model=model)
    if found := _EXPERT.fullmatch(part):
        split = _Split(rank=layout.etp_rank, size=layout.etp_size)
        expert = int(found[1] or found[4]) + layout.ep_rank * (model.num_experts // layout.ep_size)
        if (found[2] or found[3]) == "1":
            return _gated(f"{prefix}mlp.experts.{expert}.", shape, split)
        return _columns(f"{prefix}mlp.experts.{expert}.down_proj.weight", shape, split)
    raise _unknown(f"{prefix}{part}")


def _whole(tensor: str, shape: tuple[int, ...]) -> tuple[HubBlock, ...]:
    box = Box(starts=(0,) * len(shape), sizes=shape)
    return (HubBlock(tensor=tensor, tensor_shape=shape, box=box, local=box),)


def _rows(tensor: str, shape: tuple[int, ...], split: _Split, *, num_rows: int) -> tuple[HubBlock, ...]:
    start = split.rank * shape[0]
    count = min(shape[0], num_rows - start)
    if count <= 0:
        return ()
    return (_row_block(tensor, shape, num_rows=num_rows, start=start, local_start=0, count=count),)


def _columns(tensor: str, shape: tuple[int, ...], split: _Split) -> tuple[HubBlock, ...]:
    rows, columns = shape
    return (
        HubBlock(
            tensor=tensor,
            tensor_shape=(rows, columns * split.size),
            box=Box(starts=(0, split.rank * columns), sizes=shape),
            local=Box(starts=(0, 0), sizes=shape),
        ),
    )


def _gated(prefix: str, shape: tuple[int, ...], split: _Split) -> tuple[HubBlock, ...]:
    count = shape[0] // 2
    return tuple(
        _row_block(
            f"{prefix}{part}_proj.weight",
            shape,
            num_rows=count * split.size,
            start=split.rank * count,
            local_start=index * count,
            count=count,
        )
        for index, part in enumerate(("gate", "up"))
    )


def _query_key_value(
    prefix: str, kind: str, shape: tuple[int, ...], split: _Split, *, model: ModelShape
) -> tuple[HubBlock, ...]:
    num_groups = model.num_kv_groups // split.size
    heads_per_group = model.num_heads // model.num_kv_groups
    blocks, local_start = [], 0
    for group in range(split.rank * num_groups, (split.rank + 1) * num_groups):
        for part, num_heads in (("q", heads_per_group), ("k", 1), ("v", 1)):
            count = num_heads * model.head_dim
            blocks.append(
                _row_block(
                    f"{prefix}self_attn.{part}_proj.{kind}",
                    shape,
                    num_rows=model.num_kv_groups * count,
                    start=group * count,
                    local_start=local_start,
                    count=count,
                )
            )
            local_start += count
    return tuple(blocks)


def _row_block(
    tensor: str, shape: tuple[int, ...], *, num_rows: int, start: int, local_start: int, count: int
) -> HubBlock:
    zeros = (0,) * (len(shape) - 1)
    sizes = (count, *shape[1:])
    return HubBlock(
        tensor=tensor,
        tensor_shape=(num_rows, *shape[1:]),
        box=Box(starts=(start, *zeros), sizes=sizes),
        local=Box(starts=(local_start, *zeros), sizes=sizes),
    )


def _unknown(name: str) -> InvalidInputError:
    return InvalidInputError(f"parameter {name!r} has no hub name; known are the parameters of a GLM-4.5 model")
