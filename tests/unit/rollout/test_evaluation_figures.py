"""pass@k against counting every subset, and length figures against sorting."""

import math
from itertools import combinations, pairwise

import hypothesis.strategies as st
import pytest
from hypothesis import given

from services.common.errors import InvalidInputError
from services.rollout.evaluation_figures import length_figures, pass_at_k, pass_rates, tries_of


@pytest.mark.parametrize("num_samples", range(1, 10))
def test_pass_at_k_is_the_share_of_subsets_with_a_pass(num_samples: int) -> None:
    for num_passed in range(num_samples + 1):
        passes = [True] * num_passed + [False] * (num_samples - num_passed)
        for k in range(1, num_samples + 1):
            subsets = [any(subset) for subset in combinations(passes, k)]
            estimate = pass_at_k(num_samples=num_samples, num_passed=num_passed, k=k)
            assert estimate == pytest.approx(sum(subsets) / len(subsets), abs=1e-15)


@pytest.mark.parametrize(("share", "k"), [(0.1, 1), (0.3, 3), (0.5, 4), (0.9, 5)])
def test_the_estimate_has_no_bias(share: float, k: int) -> None:
    # The mean over the binomial number of passes of 6 samples is the true chance 1 - (1 - p)^k.
    expected = sum(
        math.comb(6, passed)
        * share**passed
        * (1 - share) ** (6 - passed)
        * pass_at_k(num_samples=6, num_passed=passed, k=k)
        for passed in range(7)
    )
    assert expected == pytest.approx(1 - (1 - share) ** k)


def test_hand_values_and_a_number_of_samples_at_which_products_of_floats_fail() -> None:
    assert pass_at_k(num_samples=4, num_passed=2, k=2) == pytest.approx(5 / 6)
    assert pass_at_k(num_samples=200, num_passed=0, k=100) == 0.0
    assert pass_at_k(num_samples=200, num_passed=101, k=100) == 1.0
    # 1 of 5000 passes: a subset of 2500 holds it in half of the cases.
    assert pass_at_k(num_samples=5000, num_passed=1, k=2500) == 0.5


@pytest.mark.parametrize(("num_samples", "num_passed", "k"), [(4, 1, 5), (4, 1, 0), (4, 5, 1), (4, -1, 1), (0, 0, 1)])
def test_pass_at_k_of_impossible_counts_is_refused(num_samples: int, num_passed: int, k: int) -> None:
    with pytest.raises(InvalidInputError, match=f"pass@{k} of {num_samples} samples with {num_passed} passed"):
        pass_at_k(num_samples=num_samples, num_passed=num_passed, k=k)


@pytest.mark.parametrize(
    ("num_samples", "wanted"),
    [(1, (1,)), (2, (1, 2)), (3, (1, 2, 3)), (4, (1, 2, 4)), (6, (1, 2, 4, 6)), (16, (1, 2, 4, 8, 16))],
)
def test_tries_are_the_powers_of_two_and_the_number_itself(num_samples: int, wanted: tuple[int, ...]) -> None:
    assert tries_of(num_samples) == wanted


def test_any_threshold_decides_what_passes() -> None:
    rewards = [[0.2, 0.7], [0.7, 1.0]]
    assert pass_rates(rewards, threshold=1.0) == {1: 0.25, 2: 0.5}
    assert pass_rates(rewards, threshold=0.7) == {1: 0.75, 2: 1.0}
    assert pass_rates(rewards, threshold=0.0) == {1: 1.0, 2: 1.0}
    assert pass_rates(rewards, threshold=1.5) == {1: 0.0, 2: 0.0}


@given(
    st.integers(min_value=1, max_value=12).flatmap(
        lambda n: st.lists(st.lists(st.floats(0, 1), min_size=n, max_size=n), min_size=1, max_size=8)
    ),
    st.floats(0, 1),
)
def test_more_tries_never_pass_less_and_one_try_is_the_share(rewards: list[list[float]], threshold: float) -> None:
    rates = pass_rates(rewards, threshold=threshold)
    values = list(rates.values())
    assert all(later >= earlier - 1e-12 for earlier, later in pairwise(values))
    flat = [reward >= threshold for row in rewards for reward in row]
    assert rates[1] == pytest.approx(sum(flat) / len(flat))
    assert values[-1] == pytest.approx(sum(max(row) >= threshold for row in rewards) / len(rewards))


@pytest.mark.parametrize("rewards", [[], [[1.0], [1.0, 0.0]], [[]]])
def test_rows_of_several_lengths_or_none_are_refused(rewards: list[list[float]]) -> None:
    with pytest.raises(InvalidInputError, match="wanted one number above 0 for all"):
        pass_rates(rewards, threshold=1.0)


def test_length_figures_by_hand() -> None:
    figures = length_figures([10, 1, 2, 3, 4, 5, 6, 7, 8, 9])
    assert (figures.mean, figures.median, figures.p90, figures.max) == (5.5, 5.5, 9, 10)
    assert length_figures([7]).p90 == 7
    # nine of eleven is not yet nine of ten, ten of eleven is
    assert length_figures(range(1, 12)).p90 == 10


@given(st.lists(st.integers(min_value=0, max_value=50), min_size=1, max_size=60))
def test_p90_is_the_least_length_that_nine_of_ten_do_not_exceed(lengths: list[int]) -> None:
    figures = length_figures(lengths)
    enough = [bound for bound in lengths if 10 * sum(length <= bound for length in lengths) >= 9 * len(lengths)]
    assert figures.p90 == min(enough)
    assert figures.p90 <= figures.max == max(lengths)


def test_no_length_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="no responses to measure"):
        length_figures([])
