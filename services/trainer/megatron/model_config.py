"""Megatron's configuration of a model shape under a layout of ranks."""

from functools import partial

import torch
from megatron.core.transformer import TransformerConfig

from services.common.config.trainer import ParallelConfig
from services.trainer.megatron.hub_config import ModelShape


def transformer_config(
    shape: ModelShape, parallel: ParallelConfig, *, dtype: torch.dtype, num_mtp_layers: int
) -> TransformerConfig:
    """Megatron's configuration; every value that decides the numbers is given here, none is left to a default."""
    return _architecture(shape, num_mtp_layers=num_mtp_layers)(
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
        # The weights come from the hub's files, but only initialisation marks parameters as tensor-parallel; unmarked
        # ones would count once, not once a rank, in the gradient norm.
        perform_initialization=True,
    )


def _architecture(shape: ModelShape, *, num_mtp_layers: int) -> "partial[TransformerConfig]":
    """What the configuration says of the model, whatever ranks it is laid out on."""
    return partial(
        TransformerConfig,
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
    )
