"""Decides which draft tokens are accepted, greedily or by sampling from the target's distribution.

Legend: B requests, D nodes of a tree (node 0 is the known token), S most tokens accepted (1 + depth), V vocabulary.
The links are those of draft_tree. Argument names are those of SGLang's kernels.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from services.rollout.sglang_cpu.kernels.nucleus import sample_rows


@dataclass(kw_only=True)
class _Walk:
    """The accepted path of each request while it grows."""

    node: Tensor
    """[B] last accepted node."""
    num_accepted: Tensor
    """[B] accepted draft tokens."""
    is_open: Tensor
    """[B] whether the path may still grow."""


def verify_tree_greedy_cpu(
    predicts: Tensor,
    accept_index: Tensor,
    accept_token_num: Tensor,
    candidates: Tensor,
    retrive_index: Tensor,
    retrive_next_token: Tensor,
    retrive_next_sibling: Tensor,
    target_predict: Tensor,
) -> None:
    """Accepts the longest path of draft tokens that are the target's choice, then adds the target's next choice.

    Args:
        predicts: [B * D] output: the token that follows each accepted node.
        accept_index: [B, S] output: flat row of each accepted node, node 0 first; -1 already there.
        accept_token_num: [B] output: accepted draft tokens.
        candidates: [B, D] tokens of the nodes.
        target_predict: [B, D] the target's choice after each node.
    """
    choices = target_predict.reshape(candidates.shape).long()
    walk = _start(candidates, retrive_index, accept_index)
    for _ in range(1, accept_index.shape[1]):
        choice = _pick(choices, walk.node)
        child = _descend(retrive_next_token, walk)
        for _ in range(candidates.shape[1]):
            is_other = (child >= 0) & (_pick(candidates, child) != choice)
            if not bool(is_other.any()):
                break
            child = torch.where(is_other, _pick(retrive_next_sibling, child), child)
        _advance(walk, child, choice, predicts=predicts, accept_index=accept_index, rows=retrive_index)
        if not bool(walk.is_open.any()):
            break
    accept_token_num.copy_(walk.num_accepted)
    predicts[_pick(retrive_index, walk.node)] = _pick(choices, walk.node).to(predicts.dtype)


def tree_speculative_sampling_target_only(
    predicts: Tensor,
    accept_index: Tensor,
    accept_token_num: Tensor,
    candidates: Tensor,
    retrive_index: Tensor,
    retrive_next_token: Tensor,
    retrive_next_sibling: Tensor,
    uniform_samples: Tensor,
    uniform_samples_for_final_sampling: Tensor,
    target_probs: Tensor,
    draft_probs: Tensor,
    threshold_single: float = 1.0,
    threshold_acc: float = 1.0,
    deterministic: bool = True,
) -> None:
    """Accepts draft tokens so that, with both thresholds 1, every token is a draw from target_probs.

    The draft tokens of a node's children are tried in order: token t is taken when the node's coin falls in t's share
    of the target's probability; otherwise the next token is drawn from what the refused tokens leave
    (arXiv 2302.01318 with a deterministic draft).

    Args:
        uniform_samples: [B, D] coins in [0, 1); a node's coin decides among its children.
        uniform_samples_for_final_sampling: [B] coins for the token after the path.
        target_probs: [B, D, V] the target's distribution after each node.
        draft_probs: [B, D, V] zeros; refused tokens' probabilities are written here.
    """
    requests = torch.arange(candidates.shape[0])
    walk = _start(candidates, retrive_index, accept_index)
    for _ in range(1, accept_index.shape[1]):
        coin, covered = _pick(uniform_samples, walk.node), torch.zeros(candidates.shape[0])
        child = _descend(retrive_next_token, walk)
        for _ in range(candidates.shape[1]):
            token = _pick(candidates, child)
            share = target_probs[requests, walk.node, token]
            covered = covered + share
            is_refused = (child >= 0) & (coin >= covered / threshold_acc) & (share < threshold_single)
            if not bool(is_refused.any()):
                break
            refused = is_refused.nonzero()[:, 0]
            draft_probs[refused, walk.node[refused], token[refused]] = share[refused]
            child = torch.where(is_refused, _pick(retrive_next_sibling, child), child)
        token = _pick(candidates, child)
        _advance(walk, child, token, predicts=predicts, accept_index=accept_index, rows=retrive_index)
        if not bool(walk.is_open.any()):
            break
    accept_token_num.copy_(walk.num_accepted)
    target = target_probs[requests, walk.node]
    is_full = (walk.num_accepted == accept_index.shape[1] - 1)[:, None]
    rest = torch.where(is_full, target, (target - draft_probs[requests, walk.node]).clamp_min(0))
    # Rounding can leave nothing beside a refused token whose probability is 1 up to the last bit.
    rest = torch.where(rest.sum(dim=1, keepdim=True) > 0, rest, target)
    tokens = sample_rows(rest, uniform_samples_for_final_sampling)
    predicts[_pick(retrive_index, walk.node)] = tokens.to(predicts.dtype)


def _start(candidates: Tensor, retrive_index: Tensor, accept_index: Tensor) -> _Walk:
    accept_index[:, 0] = retrive_index[:, 0]
    zeros = torch.zeros(candidates.shape[0], dtype=torch.long)
    return _Walk(node=zeros, num_accepted=zeros.clone(), is_open=torch.ones_like(zeros, dtype=torch.bool))


def _descend(first_child: Tensor, walk: _Walk) -> Tensor:
    """[B] first child of the last accepted node; -1 where there is none or the path has ended."""
    return torch.where(walk.is_open, _pick(first_child, walk.node), -1)


def _pick(table: Tensor, node: Tensor) -> Tensor:
    """[B] the entry of each request's node; any entry for node -1."""
    return table.gather(1, node.clamp_min(0)[:, None])[:, 0]


def _advance(
    walk: _Walk, child: Tensor, token: Tensor, *, predicts: Tensor, accept_index: Tensor, rows: Tensor
) -> None:
    """Appends each request's accepted child, -1 for none, to its path."""
    walk.is_open = child >= 0
    grown = walk.is_open.nonzero()[:, 0]
    predicts[_pick(rows, walk.node)[grown]] = token[grown].to(predicts.dtype)
    walk.num_accepted = walk.num_accepted + walk.is_open
    walk.node = torch.where(walk.is_open, child, walk.node)
    accept_index[grown, walk.num_accepted[grown]] = _pick(rows, walk.node)[grown].to(accept_index.dtype)
