import random

import pytest

from services.reward.bench.agreement import Agreement
from services.reward.bench.figures import figures_of, percentile_ms, targets_of
from services.reward.bench.mixes import MIXES, POISON
from services.reward.bench.timing import Round, TimedSample
from services.reward.graders.boxed import MathGrader


def sample(seconds, *, poison=False, timeout=False, right=True):
    return TimedSample(seconds=seconds, is_poison=poison, is_timeout=timeout, is_verdict_right=right)


def test_percentiles_are_the_smallest_value_that_covers_the_share():
    samples = [sample(number / 1000) for number in range(1, 101)]
    assert percentile_ms(samples, 0.5) == pytest.approx(50)
    assert percentile_ms(samples, 0.99) == pytest.approx(99)
    assert percentile_ms(samples, 1.0) == pytest.approx(100)
    assert percentile_ms(samples[:1], 0.5) == pytest.approx(1)


def test_figures_are_medians_over_rounds():
    rounds = [
        Round(
            seconds=2.0, samples=(sample(0.001), sample(0.001), sample(0.003), sample(1.0, poison=True, timeout=True))
        ),
        Round(seconds=1.0, samples=(sample(0.002, right=False),) * 4),
        Round(seconds=4.0, samples=(sample(0.004),) * 4),
    ]
    figures = figures_of(rounds, num_workers=2)
    # 4 samples / 2 workers in 2, 1 and 4 seconds: 1, 2 and 0.5 a second.
    assert figures.samples_per_second_per_core == 1.0
    assert figures.p50_ms == pytest.approx(2)
    assert figures.p99_ms == pytest.approx(4)  # of 1000, 2 and 4
    assert figures.p99_without_poison_ms == pytest.approx(3)  # of 3, 2 and 4
    assert figures.max_ms == pytest.approx(1000)
    assert (figures.num_timeouts, figures.wrong_verdict_share) == (1, pytest.approx(4 / 12))


def targets(*, rates, p99_ms=10.0, right=(5, 5)):
    pairs = {}
    for name, (ours, theirs) in zip(MIXES, rates, strict=True):
        pairs[name] = tuple(
            figures_of([Round(seconds=1.0, samples=(sample(p99_ms / 1000),) * rate)], num_workers=1)
            for rate in (ours, theirs)
        )
    agreement = {"sets": Agreement(num_cases=6, num_right=right[0], num_right_reference=right[1])}
    return {target.name: target.is_met for target in targets_of(pairs, agreement, limit_seconds=1.0)}


def test_targets_are_met_at_their_bounds_and_not_beyond():
    assert all(targets(rates=[(10, 2), (3, 3), (1, 1)]).values())
    missed = targets(rates=[(9, 2), (2, 3), (1, 1)], p99_ms=50.0, right=(4, 5))
    assert [name for name, is_met in missed.items() if is_met] == ["p99 ms with poison"]
    assert not targets(rates=[(10, 2), (3, 3), (1, 1)], p99_ms=1000.0)["p99 ms with poison"]


@pytest.mark.parametrize("name", list(MIXES))
def test_mixes_have_their_size_repeat_and_hold_both_verdicts(name):
    samples = MIXES[name](1000, random.Random(1))
    assert samples == MIXES[name](1000, random.Random(1))
    assert len(samples) == 1000
    assert 0.4 < sum(item.is_right for item in samples) / 1000 < 0.6


def test_one_percent_is_poison_of_every_kind():
    samples = MIXES["1 % poison"](1000, random.Random(2))
    poison = [item for item in samples if item.is_poison]
    assert 8 <= len(poison) <= 10, "two may fall on one place"
    assert {item.response for item in poison} == {rf"The answer is \boxed{{{text}}}." for text in POISON}


@pytest.mark.parametrize("name", list(MIXES))
def test_wrong_replies_are_wrong_by_the_graders_own_judgement(name):
    grader = MathGrader()
    for item in MIXES[name](500, random.Random(3)):
        judgement = grader.grade(prompt="", response=item.response, label=item.label)
        assert (judgement.value == 1.0) == item.is_right, item
