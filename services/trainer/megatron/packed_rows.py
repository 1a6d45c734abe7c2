"""Between packed tokens and right-padded rows, and between a token and the next one of its sequence. Pure torch.

Legend: T packed tokens, N sequences, L tokens of the longest.
"""

import torch
from torch.nn import functional


def pad_pack(tensor: torch.Tensor, num_tokens: int) -> torch.Tensor:
    """[num_tokens] the tensor with zeros (False) behind it."""
    return functional.pad(tensor, (0, num_tokens - tensor.numel()))


def pad_offsets(cu_seqlens: torch.Tensor, num_tokens: int) -> torch.Tensor:
    """The offsets with one more sequence over the padding, when there is any."""
    if int(cu_seqlens[-1]) == num_tokens:
        return cu_seqlens
    return functional.pad(cu_seqlens, (0, 1), value=num_tokens)


def row_index(cu_seqlens: torch.Tensor) -> torch.Tensor:
    """[N, L] int64 packed position of each row's tokens; -1 in the padding at the right.

    Example: offsets [0, 2, 5] give [[0, 1, -1], [2, 3, 4]].
    """
    starts = cu_seqlens[:-1].long()
    lengths = cu_seqlens.long().diff()
    columns = torch.arange(int(lengths.max()), device=cu_seqlens.device)
    return torch.where(columns < lengths[:, None], starts[:, None] + columns, -1)


def to_rows(packed: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """[N, L, ...] the packed tokens in their rows, zeros in the padding.

    Args:
        packed: [T, ...].
        rows: [N, L] row index.
    """
    if rows.numel() > packed.shape[0]:
        packed = packed.new_zeros(rows.numel(), *packed.shape[1:]).index_copy(0, _filled(rows), packed)
    return packed.view(*rows.shape, *packed.shape[1:])


def from_rows(padded: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """[T, ...] the tokens of the rows in packed order, padding left out.

    Args:
        padded: [N, L, ...].
        rows: [N, L] row index.
    """
    flat = padded.flatten(0, 1)
    filled = _filled(rows)
    return flat if filled.numel() == rows.numel() else flat.index_select(0, filled)


def next_in_sequence(packed: torch.Tensor, cu_seqlens: torch.Tensor) -> torch.Tensor:
    """[T] the value at the next position of the same sequence; zero (False) at each sequence's last position.

    Example: values [1, 2, 3, 4, 5] with offsets [0, 2, 5] give [2, 0, 4, 5, 0].
    """
    following = torch.zeros_like(packed)
    following[:-1] = packed[1:]
    following[cu_seqlens[1:].long() - 1] = 0
    return following


def _filled(rows: torch.Tensor) -> torch.Tensor:
    """[T] places in the flattened rows that hold a token, in packed order."""
    return torch.nonzero(rows.flatten() >= 0).squeeze(1)
