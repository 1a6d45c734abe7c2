"""Modules that take the place of Transformer Engine's in Megatron's local layers.

Legend: T tokens of a micro-batch on all tensor-parallel ranks, N rows (sequences), L longest row, H hidden size.
Megatron hands the row index through as `attention_mask`; see row_index in packed_rows.py.
"""

import torch
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.transformer import TransformerConfig
from megatron.core.transformer.enums import AttnMaskType
from megatron.core.transformer.moe.experts import SequentialMLP
from torch.nn import functional

from services.trainer.megatron.expert_math import grouped_gated_mlp
from services.trainer.megatron.packed_rows import from_rows, to_rows


class RmsNorm(torch.nn.RMSNorm):
    """The RMS norm, with its weight marked for Megatron's sum over sequence-parallel ranks."""

    def __init__(self, config: TransformerConfig, hidden_size: int, eps: float = 1e-5) -> None:
        super().__init__(hidden_size, eps=eps, dtype=config.params_dtype, device=torch.cuda.current_device())
        self.weight.sequence_parallel = config.sequence_parallel  # type: ignore[attr-defined]


class RowAttention(torch.nn.Module):
    """Causal attention within each sequence of a pack.

    The packed tokens are laid into right-padded rows, so the work is N * L^2 and not T^2. Padding stands behind every
    token of its row, where a causal mask hides it.
    """

    def __init__(
        self,
        config: TransformerConfig,
        layer_number: int,
        attn_mask_type: AttnMaskType,
        attention_type: str,
        cp_comm_type: str | None,
        softmax_scale: float | None,
        pg_collection: ProcessGroupCollection,
    ) -> None:
        super().__init__()
        self._scale = softmax_scale or config.kv_channels**-0.5

    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor,
        *,
        attn_mask_type: AttnMaskType,
        attention_bias: None,
        packed_seq_params: None,
    ) -> torch.Tensor:
        """[T, 1, heads * head_dim].

        Args:
            query: [T, 1, heads, head_dim]; key and value likewise with their own number of heads.
            attention_mask: [N, L] int64 row index.
        """
        rows = attention_mask
        query, key, value = (to_rows(part.squeeze(1), rows).transpose(1, 2) for part in (query, key, value))
        output = functional.scaled_dot_product_attention(
            query, key, value, is_causal=True, scale=self._scale, enable_gqa=query.shape[1] != key.shape[1]
        )
        return from_rows(output.transpose(1, 2), rows).flatten(1).unsqueeze(1)


class GroupedExperts(SequentialMLP):  # type: ignore[misc]
    """Megatron's sequential experts, with the same parameters, computed in one step."""

    def forward(
        self, permuted_local_hidden_states: torch.Tensor, tokens_per_expert: torch.Tensor, permuted_probs: torch.Tensor
    ) -> tuple[torch.Tensor, None]:
        """[M, H] the experts' outputs for M token copies sorted by expert, and no bias."""
        output = grouped_gated_mlp(
            permuted_local_hidden_states,
            permuted_probs,
            counts=tokens_per_expert.tolist(),
            first=[expert.linear_fc1.weight for expert in self.local_experts],
            second=[expert.linear_fc2.weight for expert in self.local_experts],
        )
        return output, None
