"""The soft overlong penalty against the formula of the paper."""

import hypothesis.strategies as st
import pytest
from hypothesis import given

from services.rollout.overlong import OverlongPenalty


@pytest.mark.parametrize(
    ("num_tokens", "wanted"),
    # The paper's run: L_max 20480, L_cache 4096. Half of the buffer is gone at 18432 tokens.
    [(1, 0.0), (16384, 0.0), (16385, -1 / 4096), (18432, -0.5), (20480, -1.0), (20481, -1.0)],
)
def test_values_of_the_papers_run(num_tokens: int, wanted: float) -> None:
    penalty = OverlongPenalty(max_new_tokens=20480, buffer_tokens=4096, factor=1.0)
    assert penalty.of(num_tokens) == pytest.approx(wanted, abs=1e-12)


def test_without_a_buffer_there_is_no_penalty_even_at_the_limit() -> None:
    penalty = OverlongPenalty(max_new_tokens=8, buffer_tokens=0, factor=1.0)
    assert [penalty.of(n) for n in (0, 7, 8, 9)] == [0.0, 0.0, 0.0, 0.0]


@given(
    st.integers(min_value=1, max_value=500),
    st.data(),
    st.floats(min_value=0, max_value=10),
    st.integers(min_value=0, max_value=600),
)
def test_it_is_the_papers_three_branches_times_the_factor(
    limit: int, data: st.DataObject, factor: float, num_tokens: int
) -> None:
    buffer = data.draw(st.integers(min_value=1, max_value=limit))
    start = limit - buffer
    if num_tokens <= start:
        wanted = 0.0
    elif num_tokens <= limit:
        wanted = (start - num_tokens) / buffer
    else:
        wanted = -1.0
    penalty = OverlongPenalty(max_new_tokens=limit, buffer_tokens=buffer, factor=factor)
    assert penalty.of(num_tokens) == pytest.approx(factor * wanted)
