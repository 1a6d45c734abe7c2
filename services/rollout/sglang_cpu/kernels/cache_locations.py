"""Index bookkeeping of the key-value cache: which slot of the pool holds which token of which request.

Legend: B requests, N rows of the request table, C its columns (positions), S slots of the pool. The names and the
in-place outputs are those of SGLang's C++ kernels.
"""

import ctypes

import numpy as np
import torch
from torch import Tensor


def assign_req_to_token_pool_cpu(
    req_pool_indices: Tensor,
    req_to_token: Tensor,
    start_offset: Tensor,
    end_offset: Tensor,
    out_cache_loc: Tensor,
    pool_len: int,
) -> None:
    """Writes the slots out_cache_loc, concatenated over requests, to positions [start, end) of each request.

    Args:
        req_pool_indices: [B] row of each request in req_to_token [N, C].
        pool_len: C; the table's shape says the same.
    """
    rows, columns = _ragged_positions(req_pool_indices, start_offset, end_offset)
    req_to_token[rows, columns] = out_cache_loc[: rows.numel()].to(req_to_token.dtype)


def assign_extend_cache_locs_cpu(
    req_pool_indices: Tensor,
    req_to_token: Tensor,
    start_offset: Tensor,
    end_offset: Tensor,
    out_cache_loc: Tensor,
    pool_len: int,
) -> None:
    """Reads the slots of positions [start, end) of each request, concatenated, into out_cache_loc."""
    rows, columns = _ragged_positions(req_pool_indices, start_offset, end_offset)
    out_cache_loc[: rows.numel()] = req_to_token[rows, columns].to(out_cache_loc.dtype)


def assign_draft_cache_locs_contiguous_cpu(
    req_pool_indices: Tensor,
    req_to_token: Tensor,
    seq_lens: Tensor,
    out_cache_loc: Tensor,
    pool_len: int,
    topk: int,
    num_steps: int,
) -> None:
    """Reads the topk * num_steps slots that follow each request's sequence into out_cache_loc."""
    steps = torch.arange(topk * num_steps)
    columns = seq_lens.long()[:, None] + steps
    slots = req_to_token[req_pool_indices.long()[:, None], columns]
    out_cache_loc[: slots.numel()] = slots.reshape(-1).to(out_cache_loc.dtype)


def build_draft_decode_metadata_cpu(
    req_to_token: Tensor,
    req_pool_indices: Tensor,
    seq_lens: Tensor,
    topk: int,
    num_steps: int,
    pool_len: int,
) -> Tensor:
    """[B * topk, C] one row of slots per draft branch: the shared prefix, then the branch's own num_steps slots."""
    branch_rows = req_to_token[req_pool_indices.long()].repeat_interleave(topk, dim=0)
    branches = torch.arange(topk).repeat(seq_lens.numel())
    starts = seq_lens.long().repeat_interleave(topk)
    columns = starts[:, None] + torch.arange(num_steps)
    own_slots = branch_rows.gather(1, columns + (branches * num_steps)[:, None])
    return branch_rows.scatter(1, columns, own_slots)


def fill_bonus_tokens_cpu(accept_tokens: Tensor, accept_lens: Tensor, bonus_tokens: Tensor, accept_stride: int) -> None:
    """Writes the last accepted token of each request; accept_tokens is [B, accept_stride], flat."""
    num_requests = accept_lens.numel()
    last = torch.arange(num_requests) * accept_stride + accept_lens.long() - 1
    bonus_tokens[:num_requests] = accept_tokens.reshape(-1)[last].to(bonus_tokens.dtype)


def fill_accept_out_cache_loc_cpu(accept_index: Tensor, out_cache_loc: Tensor, accept_out_cache_loc: Tensor) -> None:
    """Writes the slots of the accepted tokens, in order; -1 in accept_index means no token."""
    flat = accept_index.reshape(-1)
    accepted = flat[flat > -1].long()
    accept_out_cache_loc[: accepted.numel()] = out_cache_loc[accepted].to(accept_out_cache_loc.dtype)


def rotate_input_ids_cpu(
    input_ids: Tensor,
    extend_start_loc: Tensor,
    extend_seq_lens: Tensor,
    topk_index: Tensor,
    select_index: Tensor | None = None,
) -> None:
    """Shifts each request's tokens one to the left in place and puts its next token at the end.

    Args:
        select_index: [B] where the next token goes instead of the request's last place.
    """
    lengths = extend_seq_lens.long()
    present = lengths > 0
    last = (extend_start_loc.long() + lengths - 1)[present]
    shifted = torch.cat((input_ids[1:], input_ids[-1:]))
    shifted[last] = input_ids[last]
    places = last if select_index is None else select_index.long()[present]
    shifted[places] = topk_index.reshape(-1)[: lengths.numel()][present].to(input_ids.dtype)
    input_ids.copy_(shifted)


def copy_all_layer_kv_cache_cpu(data_ptrs: Tensor, strides: Tensor, tgt_loc: Tensor, src_loc: Tensor) -> None:
    """Copies slots src_loc to tgt_loc in every buffer; the two may overlap.

    Args:
        data_ptrs: [L] address of each buffer.
        strides: [L] bytes of one slot of each buffer.
    """
    if src_loc.numel() == 0:
        return
    sources, targets = src_loc.numpy(), tgt_loc.numpy()
    num_slots = int(max(sources.max(), targets.max())) + 1
    for address, stride in zip(data_ptrs.tolist(), strides.tolist(), strict=True):
        buffer = (ctypes.c_uint8 * (num_slots * stride)).from_address(address)
        slots = np.frombuffer(buffer, dtype=np.uint8).reshape(num_slots, stride)
        slots[targets] = slots[sources]


def _ragged_positions(req_pool_indices: Tensor, starts: Tensor, ends: Tensor) -> tuple[Tensor, Tensor]:
    """(rows, columns) of every position in [start, end) of each request, concatenated."""
    lengths = (ends - starts).long()
    offsets = starts.long() - (lengths.cumsum(0) - lengths)
    rows = req_pool_indices.long().repeat_interleave(lengths)
    columns = torch.arange(rows.numel()) + offsets.repeat_interleave(lengths)
    return rows, columns
