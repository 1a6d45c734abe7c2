"""Stand-in for the CPU build of sgl_kernel: what SGLang 0.5.20 imports and calls for a text model with EAGLE.

`convert_weight_packed` is absent on purpose: without it SGLang sees no AMX and uses torch-native layers.
"""

import torch

from services.rollout.sglang_cpu.kernels.attention import decode_attention, extend_attention
from services.rollout.sglang_cpu.kernels.cache_locations import (
    assign_draft_cache_locs_contiguous_cpu,
    assign_extend_cache_locs_cpu,
    assign_req_to_token_pool_cpu,
    build_draft_decode_metadata_cpu,
    copy_all_layer_kv_cache_cpu,
    fill_accept_out_cache_loc_cpu,
    fill_bonus_tokens_cpu,
    rotate_input_ids_cpu,
)
from services.rollout.sglang_cpu.kernels.draft_tree import build_tree_kernel_efficient_cpu
from services.rollout.sglang_cpu.kernels.nucleus import top_k_renorm_prob, top_p_renorm_prob
from services.rollout.sglang_cpu.kernels.tree_verification import (
    tree_speculative_sampling_target_only,
    verify_tree_greedy_cpu,
)

__version__ = "0.4.7+furlong"

__all__ = [
    "assign_draft_cache_locs_contiguous_cpu",
    "assign_extend_cache_locs_cpu",
    "assign_req_to_token_pool_cpu",
    "build_draft_decode_metadata_cpu",
    "build_tree_kernel_efficient_cpu",
    "copy_all_layer_kv_cache_cpu",
    "fill_accept_out_cache_loc_cpu",
    "fill_bonus_tokens_cpu",
    "rotate_input_ids_cpu",
    "top_k_renorm_prob",
    "top_p_renorm_prob",
    "tree_speculative_sampling_target_only",
    "verify_tree_greedy_cpu",
]

# SGLang calls these two as torch.ops.sgl_kernel.*; they exist once this module is imported.
torch.library.define(
    "sgl_kernel::decode_attention_cpu",
    "(Tensor q, Tensor(a!) k_buffer, Tensor(b!) v_buffer, float k_scale, float v_scale, Tensor(c!) o, Tensor? k, "
    "Tensor? v, Tensor loc, Tensor attn_logits, Tensor req_to_token, Tensor req_pool_indices, Tensor seq_lens, "
    "float scale, float cap, bool is_cross, int window, Tensor? encoder_lens=None, Tensor? sinks=None) -> ()",
)
torch.library.define(
    "sgl_kernel::extend_attention_cpu",
    "(Tensor q, Tensor? k, Tensor? v, Tensor(a!) o, Tensor k_buffer, Tensor v_buffer, float k_scale, float v_scale, "
    "Tensor req_to_token, Tensor req_pool_indices, Tensor seq_lens, Tensor extend_seq_lens, Tensor extend_start_loc, "
    "int max_len_extend, float scale, float cap, bool is_cross, int window, Tensor? encoder_lens=None, "
    "Tensor? sinks=None, Tensor? tree_mask=None, bool is_causal=True) -> ()",
)
torch.library.impl("sgl_kernel::decode_attention_cpu", "cpu", decode_attention)
torch.library.impl("sgl_kernel::extend_attention_cpu", "cpu", extend_attention)
