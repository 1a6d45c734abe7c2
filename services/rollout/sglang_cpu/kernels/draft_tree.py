"""Builds the trees of draft tokens that one target forward pass verifies.

Legend: B requests, D tokens of a tree (node 0 is the known token). Nodes are sorted: a parent precedes its children,
siblings are in order of their index.
"""

import torch
from torch import Tensor

FULL_MASK = 0
"""Mask layout: each tree row covers the whole prefix and the tree."""
QLEN_ONLY = 1
"""Mask layout: each tree row covers the tree only."""


def build_tree_kernel_efficient_cpu(
    parent_list: Tensor,
    selected_index: Tensor,
    verified_seq_len: Tensor,
    tree_mask: Tensor,
    positions: Tensor,
    retrive_index: Tensor,
    retrive_next_token: Tensor,
    retrive_next_sibling: Tensor,
    topk: int,
    depth: int,
    draft_token_num: int,
    tree_mask_mode: int,
) -> None:
    """Fills the attention mask, the positions and the first-child / next-sibling links of each request's tree.

    Args:
        parent_list: [B, P] candidate index of each expanded node's parent; P is 0 for one draft step.
        selected_index: [B, D - 1] candidate index of each draft token, ascending.
        verified_seq_len: [B] tokens before the tree.
        tree_mask: flat bool output in the layout tree_mask_mode.
        positions: [B * D] output: position in the sequence.
        retrive_index: [B, D] output: row of the node in the flat batch.
        retrive_next_token: [B, D] output: first child; -1 already there.
        retrive_next_sibling: [B, D] output: next sibling; -1 already there.
    """
    num_requests, num_nodes = verified_seq_len.numel(), draft_token_num
    parents = _parents(parent_list, selected_index, topk)
    ancestors, depths = _ancestors(parents)
    positions.copy_((verified_seq_len.long()[:, None] + depths).reshape(-1))
    retrive_index.copy_(torch.arange(num_requests * num_nodes).view(num_requests, num_nodes))
    _link(parents, retrive_next_token, retrive_next_sibling)
    if int(tree_mask_mode) == QLEN_ONLY:
        tree_mask[: ancestors.numel()] = ancestors.reshape(-1)
    elif int(tree_mask_mode) == FULL_MASK:
        _fill_full_mask(tree_mask, ancestors, verified_seq_len)
    else:
        raise ValueError(f"tree_mask_mode is {int(tree_mask_mode)}; a CPU knows 0 (full) and 1 (tree only)")


def _parents(parent_list: Tensor, selected_index: Tensor, topk: int) -> Tensor:
    """[B, D] parent of each node; that of node 0 is -1."""
    expanded = torch.div(selected_index, topk, rounding_mode="floor").long()
    num_requests = selected_index.shape[0]
    root = torch.full((num_requests, 1), -1)
    if parent_list.shape[1] == 0:
        return torch.cat((root, torch.zeros_like(expanded)), dim=1)
    candidate = parent_list.long().gather(1, expanded)
    matches = selected_index[:, None, :] == candidate[:, :, None]
    found = matches.int().argmax(dim=2) + 1
    return torch.cat((root, torch.where(expanded == 0, 0, found)), dim=1)


def _ancestors(parents: Tensor) -> tuple[Tensor, Tensor]:
    """([B, D, D] whether a node sees another: itself and its ancestors, [B, D] depth)."""
    num_requests, num_nodes = parents.shape
    sees = torch.eye(num_nodes, dtype=torch.bool).repeat(num_requests, 1, 1)
    requests = torch.arange(num_requests)
    for node in range(1, num_nodes):
        sees[:, node] |= sees[requests, parents[:, node]]
    return sees, sees.sum(dim=2) - 1


def _link(parents: Tensor, first_child: Tensor, next_sibling: Tensor) -> None:
    num_nodes = parents.shape[1]
    nodes = torch.arange(num_nodes)
    is_child = parents[:, None, :] == nodes[:, None]
    first_child.copy_(_first(is_child))
    is_later_sibling = (parents[:, None, :] == parents[:, :, None]) & (nodes > nodes[:, None])
    next_sibling.copy_(_first(is_later_sibling))


def _first(matches: Tensor) -> Tensor:
    """[B, D] index of the first match along the last dimension, -1 where there is none."""
    return torch.where(matches.any(dim=2), matches.int().argmax(dim=2), -1)


def _fill_full_mask(tree_mask: Tensor, ancestors: Tensor, verified_seq_len: Tensor) -> None:
    num_nodes = ancestors.shape[1]
    start = 0
    for length, sees in zip(verified_seq_len.tolist(), ancestors, strict=True):
        end = start + num_nodes * (length + num_nodes)
        rows = tree_mask[start:end].view(num_nodes, length + num_nodes)
        rows[:, :length] = True
        rows[:, length:] = sees
        start = end
