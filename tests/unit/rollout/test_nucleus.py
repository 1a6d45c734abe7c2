"""Restricting distributions and drawing from them, by hand."""

import torch

from services.rollout.sglang_cpu.kernels.nucleus import sample_rows, top_k_renorm_prob, top_p_renorm_prob

PROBABILITIES = torch.tensor([[0.1, 0.4, 0.3, 0.2], [0.25, 0.25, 0.25, 0.25]])


def test_top_p_keeps_the_fewest_tokens_that_reach_the_mass() -> None:
    # Row 0: 0.4 + 0.3 = 0.7 reaches 0.6; row 1 with mass 1 keeps all.
    kept = top_p_renorm_prob(PROBABILITIES, torch.tensor([0.6, 1.0]))
    torch.testing.assert_close(kept, torch.tensor([[0, 4 / 7, 3 / 7, 0], [0.25] * 4]))


def test_top_k_keeps_the_largest_tokens_and_ties() -> None:
    kept = top_k_renorm_prob(PROBABILITIES, torch.tensor([1, 2]))
    torch.testing.assert_close(kept, torch.tensor([[0, 1.0, 0, 0], [0.25] * 4]))


def test_drawn_index_is_where_the_running_share_passes_the_coin() -> None:
    weights = torch.tensor([[0.0, 2.0, 0.0, 2.0]]).repeat(4, 1)
    # The weights need not sum to 1; a coin of exactly one half belongs to the next index.
    assert sample_rows(weights, torch.tensor([0.0, 0.4999, 0.5, 0.99999994])).tolist() == [1, 1, 3, 3]
