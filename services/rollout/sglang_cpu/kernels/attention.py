"""Attention of SGLang's `intel_amx` backend over the paged key-value cache, batched by padding.

Legend: B requests, Q tokens that attend, H heads, G key-value heads, D head size, S slots of the pool, M longest
sequence of a batch, C positions of the request table.
"""

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

# Keeps padded queries x keys of one batch under 64 MiB of fp32 scores, whatever the prompt lengths.
MAX_PADDED_SCORES = 1 << 24


def decode_attention(
    q: Tensor,
    k_buffer: Tensor,
    v_buffer: Tensor,
    k_scale: float,
    v_scale: float,
    o: Tensor,
    k: Tensor | None,
    v: Tensor | None,
    loc: Tensor,
    attn_logits: Tensor,
    req_to_token: Tensor,
    req_pool_indices: Tensor,
    seq_lens: Tensor,
    scale: float,
    cap: float,
    is_cross: bool,
    window: int,
    encoder_lens: Tensor | None = None,
    sinks: Tensor | None = None,
) -> None:
    """Writes to o the attention of one token per request over its whole sequence, after storing its key and value.

    Args:
        q: [B, H, D].
        k_buffer: [S, G, D]; k, if given, is stored at the slots loc first. v likewise.
        o: [B, H, D] output.
        attn_logits: unused scratch.
        seq_lens: [B] the token included.
    """
    _check_plain(cap, is_cross, window, sinks)
    if k is not None and v is not None:
        k_buffer[loc] = k.view(-1, *k_buffer.shape[1:])
        v_buffer[loc] = v.view(-1, *v_buffer.shape[1:])
    longest = int(seq_lens.max())
    slots = _slots(req_to_token, req_pool_indices, seq_lens, longest=longest)
    visible = torch.arange(longest) < seq_lens[:, None]
    result = _attend(q[:, None], k_buffer, v_buffer, slots, visible[:, None], scale)
    o.copy_(result[:, 0])


def extend_attention(
    q: Tensor,
    k: Tensor | None,
    v: Tensor | None,
    o: Tensor,
    k_buffer: Tensor,
    v_buffer: Tensor,
    k_scale: float,
    v_scale: float,
    req_to_token: Tensor,
    req_pool_indices: Tensor,
    seq_lens: Tensor,
    extend_seq_lens: Tensor,
    extend_start_loc: Tensor,
    max_len_extend: int,
    scale: float,
    cap: float,
    is_cross: bool,
    window: int,
    encoder_lens: Tensor | None = None,
    sinks: Tensor | None = None,
    tree_mask: Tensor | None = None,
    is_causal: bool = True,
) -> None:
    """Writes to o the attention of each request's last tokens, whose keys and values are in the buffers already.

    Args:
        q: [Q, H, D] the last extend_seq_lens tokens of each request, concatenated.
        o: [Q, H, D] output.
        seq_lens: [B] the last tokens included.
        tree_mask: which of its request's last tokens each token sees, flat; either over those tokens only or over the
            whole sequence. Without it the tokens form a chain.
    """
    _check_plain(cap, is_cross, window, sinks)
    lengths, extends = seq_lens.tolist(), extend_seq_lens.tolist()
    if tree_mask is not None:
        tree_rows = _tree_rows(tree_mask, lengths, extends)
    for first, end in _batches(lengths, extends, num_heads=q.shape[1]):
        longest, most = max(lengths[first:end]), max(extends[first:end])
        if most == 0:
            continue
        sequence, extend = seq_lens[first:end, None].long(), extend_seq_lens[first:end, None].long()
        slots = _slots(req_to_token, req_pool_indices[first:end], seq_lens[first:end], longest=longest)
        # Padded queries repeat the request's first one; their results are dropped below.
        steps = torch.arange(most)
        is_real = steps < extend
        rows = extend_start_loc[first:end, None].long() + torch.where(is_real, steps, 0)
        visible = _visible(sequence, extend, steps, longest=longest, is_causal=is_causal)
        if tree_mask is not None:
            visible = _with_tree(visible, tree_rows[first:end])
        result = _attend(q[rows.clamp_max(q.shape[0] - 1)], k_buffer, v_buffer, slots, visible, scale)
        o[rows[is_real]] = result[is_real]


def _check_plain(cap: float, is_cross: bool, window: int, sinks: Tensor | None) -> None:
    if cap > 0 or is_cross or window > 0 or sinks is not None:
        raise NotImplementedError(
            f"attention with logit cap {cap}, cross {is_cross}, window {window}, sinks {sinks is not None}; the CPU "
            "kernels know plain self-attention only"
        )


def _slots(req_to_token: Tensor, rows: Tensor, seq_lens: Tensor, *, longest: int) -> Tensor:
    """[B, M] slots of each request's positions; beyond its end its own first one, never another request's."""
    slots = req_to_token[rows.long(), :longest].long()
    return torch.where(torch.arange(longest) < seq_lens[:, None], slots, slots[:, :1])


def _attend(
    queries: Tensor, k_buffer: Tensor, v_buffer: Tensor, slots: Tensor, visible: Tensor, scale: float
) -> Tensor:
    """[B, q, H, D] attention of queries [B, q, H, D] over slots [B, M] where visible [B, q, M]."""
    keys, values = _gather(k_buffer, slots), _gather(v_buffer, slots)
    result = scaled_dot_product_attention(
        queries.transpose(1, 2),
        keys,
        values,
        attn_mask=visible[:, None],
        scale=scale,
        enable_gqa=True,
    )
    return result.transpose(1, 2)


def _gather(buffer: Tensor, slots: Tensor) -> Tensor:
    """[B, G, M, D] the entries of a pool buffer [S, G, D] at slots [B, M]."""
    entries = buffer.index_select(0, slots.reshape(-1))
    return entries.view(*slots.shape, *buffer.shape[1:]).transpose(1, 2)


def _visible(sequence: Tensor, extend: Tensor, steps: Tensor, *, longest: int, is_causal: bool) -> Tensor:
    """[B, q, M] which positions each of a request's last tokens sees; padded queries see the first position."""
    positions = torch.arange(longest)
    own = sequence - extend + steps
    last = own if is_causal else (sequence - 1).expand_as(own)
    return positions <= torch.minimum(last, sequence - 1)[:, :, None]


def _batches(lengths: list[int], extends: list[int], *, num_heads: int) -> Iterator[tuple[int, int]]:
    """Consecutive ranges of requests whose padded scores stay under MAX_PADDED_SCORES, at least one request each."""
    first = 0
    while first < len(lengths):
        end, longest, most = first + 1, lengths[first], extends[first]
        while end < len(lengths):
            longest, most = max(longest, lengths[end]), max(most, extends[end])
            if (end + 1 - first) * longest * most * num_heads > MAX_PADDED_SCORES:
                break
            end += 1
        yield first, end
        first = end


def _tree_rows(tree_mask: Tensor, lengths: list[int], extends: list[int]) -> list[tuple[int, Tensor]]:
    """For each request the first position its mask covers and the mask [q, positions covered]."""
    is_tree_only = tree_mask.numel() == sum(extend * extend for extend in extends)
    rows: list[tuple[int, Tensor]] = []
    start = 0
    for length, extend in zip(lengths, extends, strict=True):
        width = extend if is_tree_only else length
        end = start + extend * width
        rows.append((length - width, tree_mask[start:end].view(extend, width)))
        start = end
    return rows


def _with_tree(visible: Tensor, tree_rows: list[tuple[int, Tensor]]) -> Tensor:
    for request, (start, mask) in enumerate(tree_rows):
        num_tokens, width = mask.shape
        visible[request, :num_tokens, start : start + width] = mask
    return visible
