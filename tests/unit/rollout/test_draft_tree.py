"""Tree building and verification against one-request-at-a-time references on random trees."""

import random
from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor

from services.rollout.sglang_cpu.kernels import draft_tree, tree_verification


@dataclass
class Trees:
    """Random trees of num_nodes nodes in the form in which EAGLE selects them, and what they mean."""

    num_requests: int
    num_nodes: int
    topk: int
    depth: int
    seed: int
    parents: list[list[int]] = field(default_factory=list)
    selected: list[list[int]] = field(default_factory=list)
    expanded: list[list[int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        generator = random.Random(self.seed)
        for _ in range(self.num_requests):
            self._add(generator)

    def _add(self, generator: random.Random) -> None:
        # Step 0 offers candidates 0..topk-1. Each later step expands topk candidates of the step before and offers
        # topk x topk more. parent_list holds -1 for the root, then the expanded candidates in order.
        topk = self.topk
        expanded, offered, total = [-1], list(range(topk)), topk
        levels = [list(range(topk))]
        for _ in range(self.depth - 1):
            chosen = sorted(generator.sample(levels[-1], topk))
            expanded += chosen
            levels.append(list(range(total, total + topk * topk)))
            offered += levels[-1]
            total += topk * topk
        parent_of = {c: -1 if c < topk else expanded[c // topk] for c in offered}
        selected: set[int] = set()
        while len(selected) < self.num_nodes - 1:
            open_ = [c for c in offered if c not in selected and (parent_of[c] == -1 or parent_of[c] in selected)]
            selected.add(generator.choice(open_))
        ordered = sorted(selected)
        self.selected.append(ordered)
        self.expanded.append(expanded)
        self.parents.append([-1] + [0 if parent_of[c] == -1 else ordered.index(parent_of[c]) + 1 for c in ordered])

    def children(self, request: int, node: int) -> list[int]:
        return [child for child, parent in enumerate(self.parents[request]) if parent == node]

    def build(self, lengths: list[int], mode: int) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        num_nodes = self.num_nodes
        widths = [num_nodes + (length if mode == draft_tree.FULL_MASK else 0) for length in lengths]
        mask = torch.zeros(sum(num_nodes * width for width in widths), dtype=torch.bool)
        positions = torch.empty(self.num_requests * num_nodes, dtype=torch.long)
        index, child, sibling = torch.full((3, self.num_requests, num_nodes), -1)
        parent_list = torch.tensor(self.expanded) if self.depth > 1 else torch.empty(self.num_requests, 0)
        draft_tree.build_tree_kernel_efficient_cpu(
            parent_list, torch.tensor(self.selected), torch.tensor(lengths), mask, positions, index, child, sibling,
            self.topk, self.depth, num_nodes, mode,
        )  # fmt: skip
        return mask, positions, index, child, sibling


SHAPES = [
    Trees(num_requests=3, num_nodes=2, topk=1, depth=1, seed=0),
    Trees(num_requests=4, num_nodes=4, topk=1, depth=3, seed=1),
    Trees(num_requests=5, num_nodes=8, topk=3, depth=3, seed=2),
    Trees(num_requests=2, num_nodes=4, topk=4, depth=1, seed=3),
]


@pytest.mark.parametrize("mode", [draft_tree.QLEN_ONLY, draft_tree.FULL_MASK])
@pytest.mark.parametrize("trees", SHAPES)
def test_tree_has_the_masks_positions_and_links_of_its_parents(trees: Trees, mode: int) -> None:
    lengths = [3 + 2 * request for request in range(trees.num_requests)]
    mask, positions, index, child, sibling = trees.build(lengths, mode)
    start = 0
    for request, length in enumerate(lengths):
        prefix = length if mode == draft_tree.FULL_MASK else 0
        for node in range(trees.num_nodes):
            path = [node]
            while trees.parents[request][path[-1]] >= 0:
                path.append(trees.parents[request][path[-1]])
            row = mask[start : start + prefix + trees.num_nodes].tolist()
            assert row == [True] * prefix + [other in path for other in range(trees.num_nodes)]
            start += prefix + trees.num_nodes
            flat = request * trees.num_nodes + node
            assert positions[flat] == length + len(path) - 1
            assert index[request, node] == flat
            assert child[request, node] == min(trees.children(request, node), default=-1)
            later = [s for s in trees.children(request, trees.parents[request][node]) if s > node] if node else []
            assert sibling[request, node] == min(later, default=-1)


def test_unknown_mask_layout_is_refused() -> None:
    with pytest.raises(ValueError, match="tree_mask_mode is 2"):
        SHAPES[0].build([1, 1, 1], 2)


@pytest.mark.parametrize("trees", SHAPES)
def test_greedy_verification_accepts_the_targets_path(trees: Trees) -> None:
    generator = torch.Generator().manual_seed(trees.seed)
    links = trees.build([5] * trees.num_requests, draft_tree.QLEN_ONLY)[2:]
    num_accepted_in_all = 0
    for _ in range(30):
        candidates = _distinct_sibling_tokens(trees, generator, vocabulary=5)
        choices = torch.randint(5, (trees.num_requests, trees.num_nodes), generator=generator)
        predicts = torch.zeros(trees.num_requests * trees.num_nodes, dtype=torch.int32)
        accepted = torch.full((trees.num_requests, trees.depth + 1), -1, dtype=torch.int32)
        counts = torch.empty(trees.num_requests, dtype=torch.int32)
        tree_verification.verify_tree_greedy_cpu(predicts, accepted, counts, candidates, *links, choices)
        for request in range(trees.num_requests):
            path = [0]
            while True:
                choice = choices[request, path[-1]]
                nexts = [c for c in trees.children(request, path[-1]) if candidates[request, c] == choice]
                if not nexts:
                    break
                path.append(nexts[0])
            flat = [request * trees.num_nodes + node for node in path]
            assert accepted[request].tolist() == flat + [-1] * (trees.depth + 1 - len(path))
            assert counts[request] == len(path) - 1
            assert predicts[flat].tolist() == choices[request, path].tolist()
            num_accepted_in_all += len(path) - 1
    assert num_accepted_in_all > 0


@pytest.mark.parametrize("trees", SHAPES)
def test_sampled_verification_follows_its_coins(trees: Trees) -> None:
    generator = torch.Generator().manual_seed(trees.seed)
    links = trees.build([5] * trees.num_requests, draft_tree.QLEN_ONLY)[2:]
    size = (trees.num_requests, trees.num_nodes)
    for _ in range(30):
        candidates = _distinct_sibling_tokens(trees, generator, vocabulary=5)
        probabilities = torch.rand(*size, 5, generator=generator).pow(2)
        probabilities /= probabilities.sum(-1, keepdim=True)
        coins, last_coins = torch.rand(size, generator=generator), torch.rand(size[0], generator=generator)
        predicts = torch.zeros(size[0] * size[1], dtype=torch.int32)
        accepted = torch.full((size[0], trees.depth + 1), -1, dtype=torch.int32)
        counts = torch.empty(size[0], dtype=torch.int32)
        tree_verification.tree_speculative_sampling_target_only(
            predicts, accepted, counts, candidates, *links, coins, last_coins, probabilities,
            torch.zeros_like(probabilities),
        )  # fmt: skip
        for request in range(size[0]):
            path, token = _sample_path(trees, request, candidates, probabilities, coins, last_coins)
            flat = [request * trees.num_nodes + node for node in path]
            assert accepted[request].tolist() == flat + [-1] * (trees.depth + 1 - len(path))
            assert counts[request] == len(path) - 1
            assert predicts[flat].tolist() == [int(candidates[request, node]) for node in path[1:]] + [token]


@pytest.mark.parametrize("draft_token", [0, 3])
def test_sampled_tokens_have_the_targets_distribution(draft_token: int) -> None:
    # One request repeated 40,000 times: a likely (0) or an unlikely (3) draft must not change what is drawn.
    num_draws, target = 40_000, torch.tensor([0.5, 0.3, 0.15, 0.05])
    after = torch.tensor([0.1, 0.2, 0.3, 0.4])
    generator = torch.Generator().manual_seed(draft_token)
    nodes = torch.arange(2).repeat(num_draws, 1)
    predicts = torch.zeros(2 * num_draws, dtype=torch.int32)
    accepted = torch.full((num_draws, 2), -1, dtype=torch.int32)
    counts = torch.empty(num_draws, dtype=torch.int32)
    probabilities = torch.stack((target, after)).repeat(num_draws, 1, 1)
    tree_verification.tree_speculative_sampling_target_only(
        predicts, accepted, counts, torch.tensor([[0, draft_token]]).repeat(num_draws, 1),
        torch.arange(2 * num_draws).view(num_draws, 2), torch.where(nodes == 0, 1, -1), torch.full_like(nodes, -1),
        torch.rand(num_draws, 2, generator=generator), torch.rand(num_draws, generator=generator), probabilities,
        torch.zeros_like(probabilities),
    )  # fmt: skip
    first, second = predicts.view(num_draws, 2)[:, 0], predicts.view(num_draws, 2)[counts == 1, 1]
    # Chi-square with 3 degrees of freedom exceeds 16.3 once in a thousand draws.
    assert _chi_square(first, target) < 16.3
    assert _chi_square(second, after) < 16.3
    assert abs(int(counts.sum()) / num_draws - float(target[draft_token])) < 0.01


def test_impossible_draft_is_never_accepted_and_certain_draft_always() -> None:
    nodes = torch.tensor([[0, 1], [2, 3]])
    probabilities = torch.tensor([[[0.0, 1.0], [1.0, 0.0]], [[1.0, 0.0], [0.0, 1.0]]])
    predicts, counts = torch.zeros(4, dtype=torch.int32), torch.empty(2, dtype=torch.int32)
    accepted = torch.full((2, 2), -1, dtype=torch.int32)
    # The coin 0 would accept the impossible token 0 of request 0 if "at most" were used instead of "below".
    tree_verification.tree_speculative_sampling_target_only(
        predicts, accepted, counts, torch.zeros(2, 2, dtype=torch.long), nodes, torch.tensor([[1, -1], [1, -1]]),
        torch.full((2, 2), -1), torch.tensor([[0.0, 0.0], [0.999, 0.0]]), torch.tensor([0.0, 0.5]), probabilities,
        torch.zeros_like(probabilities),
    )  # fmt: skip
    assert accepted.tolist() == [[0, -1], [2, 3]]
    assert (predicts[0], predicts[2], predicts[3]) == (1, 0, 1)


def _distinct_sibling_tokens(trees: Trees, generator: torch.Generator, *, vocabulary: int) -> Tensor:
    tokens = torch.zeros(trees.num_requests, trees.num_nodes, dtype=torch.long)
    for request in range(trees.num_requests):
        for node in range(trees.num_nodes):
            children = trees.children(request, node)
            tokens[request, children] = torch.randperm(vocabulary, generator=generator)[: len(children)]
    return tokens


def _sample_path(
    trees: Trees, request: int, candidates: Tensor, probabilities: Tensor, coins: Tensor, last_coins: Tensor
) -> tuple[list[int], int]:
    path = [0]
    while True:
        rest, covered, accepted = probabilities[request, path[-1]].double().clone(), 0.0, None
        for child in trees.children(request, path[-1]):
            token = int(candidates[request, child])
            covered += float(rest[token])
            if coins[request, path[-1]] < covered:
                accepted = child
                break
            rest[token] = 0.0
        if accepted is None:
            running = rest.cumsum(0)
            return path, int((running <= float(last_coins[request]) * running[-1]).sum())
        path.append(accepted)


def _chi_square(tokens: Tensor, distribution: Tensor) -> float:
    observed = torch.bincount(tokens.long(), minlength=distribution.numel()).double()
    expected = distribution.double() * tokens.numel()
    return float(((observed - expected) ** 2 / expected).sum())
