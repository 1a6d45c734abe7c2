"""Megatron's configuration of a model shape under a layout of ranks, and the layouts that the trainer refuses."""

import torch
from megatron.core.transformer import TransformerConfig

from services.common.config.trainer import ParallelConfig
from services.common.errors import ConfigError
from services.trainer.megatron.hub_config import ModelShape


def check_layout(shape: ModelShape, parallel: ParallelConfig, *, num_ranks: int) -> None:
    """Returns when the trainer can run the model in this layout.

    Raises:
        ConfigError: it cannot; the message names the value and the remedy.
    """
    if parallel.pp > 1:
        raise ConfigError(f"trainer.parallel.pp is {parallel.pp}, but only 1 is supported; set trainer.parallel.pp=1")
    if parallel.cp > 1:
        raise ConfigError(f"trainer.parallel.cp is {parallel.cp}, but only 1 is supported; set trainer.parallel.cp=1")
    if parallel.ep == 1 and parallel.expert_tp != parallel.tp:
        # megatron-core 0.16.1 does not sum expert gradients over tp in this layout, in silence.
        raise ConfigError(
            f"trainer.parallel has tp {parallel.tp}, ep 1 and etp {parallel.expert_tp}, which trains experts with wrong "
            f"gradients; set etp={parallel.tp}"
        )
    if num_ranks % parallel.tp or num_ranks % (parallel.ep * parallel.expert_tp):
        raise ConfigError(
            f"trainer.ranks is {num_ranks}, but tp {parallel.tp} and ep {parallel.ep} x etp {parallel.expert_tp} must "
            "both divide it; change trainer.ranks or trainer.parallel"
        )
    _check_divisible(shape.num_kv_groups, parallel.tp, "num_key_value_heads", "tp")
    _check_divisible(shape.ffn_size, parallel.tp, "intermediate_size", "tp")
    _check_divisible(shape.shared_ffn_size, parallel.tp, "the shared experts' width", "tp")
    _check_divisible(shape.expert_ffn_size, parallel.expert_tp, "moe_intermediate_size", "etp")
    _check_divisible(shape.num_experts, parallel.ep, "n_routed_experts", "ep")


def padded_vocab_size(shape: ModelShape, parallel: ParallelConfig) -> int:
    """Rows of embedding and head with what is added so that tp divides them."""
    return -(-shape.vocab_size // parallel.tp) * parallel.tp


def transformer_config(
    shape: ModelShape, parallel: ParallelConfig, *, dtype: torch.dtype, num_mtp_layers: int
) -> TransformerConfig:
    """Megatron's configuration; every value that decides the numbers is given here, none is left to a default."""
    return TransformerConfig(
        num_layers=shape.num_layers,
        mtp_num_layers=num_mtp_layers or None,
        hidden_size=shape.hidden_size,
        num_attention_heads=shape.num_heads,
        num_query_groups=shape.num_kv_groups,
        kv_channels=shape.head_dim,
        ffn_hidden_size=shape.ffn_size,
        normalization="RMSNorm",
        layernorm_epsilon=shape.norm_epsilon,
        activation_func=torch.nn.functional.silu,
        gated_linear_unit=True,
        add_bias_linear=False,
        add_qkv_bias=shape.has_qkv_bias,
        qk_layernorm=shape.has_qk_norm,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        num_moe_experts=shape.num_experts,
        moe_layer_freq=[0] * shape.num_dense_layers + [1] * (shape.num_layers - shape.num_dense_layers),
        moe_router_topk=shape.top_k,
        moe_ffn_hidden_size=shape.expert_ffn_size,
        moe_shared_expert_intermediate_size=shape.shared_ffn_size or None,
        moe_router_pre_softmax=True,
        moe_router_score_function="sigmoid",
        moe_router_enable_expert_bias=True,
        # The bias is frozen: with replayed or few tokens its update would move the policy outside the optimizer.
        moe_router_bias_update_rate=0.0,
        moe_router_topk_scaling_factor=shape.routed_scaling,
        moe_router_dtype="fp32",
        moe_router_load_balancing_type="none",
        moe_token_dispatcher_type="alltoall",
        moe_grouped_gemm=False,
        tensor_model_parallel_size=parallel.tp,
        pipeline_model_parallel_size=parallel.pp,
        context_parallel_size=parallel.cp,
        expert_model_parallel_size=parallel.ep,
        expert_tensor_parallel_size=parallel.expert_tp,
        # A mixture of experts under tensor parallelism requires it.
        sequence_parallel=parallel.tp > 1,
        # Gradients are summed over data-parallel ranks, not averaged: the loss is divided by the global count.
        calculate_per_token_loss=True,
        bf16=dtype == torch.bfloat16,
        params_dtype=dtype,
        # These kernels need Transformer Engine or Apex.
        bias_activation_fusion=False,
        bias_dropout_fusion=False,
        masked_softmax_fusion=False,
        persist_layer_norm=False,
        # Not used; the default warns that it is deprecated.
        cuda_graph_scope=[],
        gradient_accumulation_fusion=False,
        apply_rope_fusion=False,
        # The weights come from the hub's files.
        perform_initialization=False,
    )


def _check_divisible(value: int, ranks: int, name: str, axis: str) -> None:
    if value % ranks:
        raise ConfigError(
            f"trainer.parallel.{axis} is {ranks}, but {name} {value} is no multiple of it; choose a divisor of {value}"
        )
