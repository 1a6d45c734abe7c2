"""From rounds to figures: medians over rounds, ratios, and the targets beside them. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from services.reward.bench.agreement import Agreement
from services.reward.bench.timing import Round, TimedSample


@dataclass(frozen=True, kw_only=True)
class MixFigures:
    """One grader on one mix; medians over the rounds."""

    samples_per_second_per_core: float
    """Rate of one worker, which keeps one core busy."""
    p50_ms: float
    """Median latency."""
    p99_ms: float
    """99th percentile of the latency, poison included."""
    p99_without_poison_ms: float
    """The same over the samples that are not poison."""
    max_ms: float
    """Longest latency of any round."""
    num_timeouts: int
    """Samples stopped at the limit, over all rounds."""
    wrong_verdict_share: float
    """Share of samples whose score says what is not so."""


def figures_of(rounds: Sequence[Round], *, num_workers: int) -> MixFigures:
    """The figures of a grader's rounds on one mix."""
    samples = [sample for round_ in rounds for sample in round_.samples]
    return MixFigures(
        samples_per_second_per_core=median(len(r.samples) / r.seconds / num_workers for r in rounds),
        p50_ms=median(percentile_ms(r.samples, 0.5) for r in rounds),
        p99_ms=median(percentile_ms(r.samples, 0.99) for r in rounds),
        p99_without_poison_ms=median(
            percentile_ms([sample for sample in r.samples if not sample.is_poison], 0.99) for r in rounds
        ),
        max_ms=max(sample.seconds for sample in samples) * 1000,
        num_timeouts=sum(sample.is_timeout for sample in samples),
        wrong_verdict_share=sum(not sample.is_verdict_right for sample in samples) / len(samples),
    )


def percentile_ms(samples: Sequence[TimedSample], share: float) -> float:
    """The latency that the share of samples does not exceed, in milliseconds."""
    times = sorted(sample.seconds for sample in samples)
    # ceil(share * n) samples are within it; the epsilon keeps 0.99 * 100 at 99.
    return times[max(0, -int(-(share * len(times) - 1e-9) // 1) - 1)] * 1000


@dataclass(frozen=True, kw_only=True)
class Target:
    """One wanted figure."""

    name: str
    """What is measured."""
    seen: float
    """The measurement."""
    wanted: str
    """The bound, in words."""
    is_met: bool
    """The measurement is within it."""


def targets_of(
    figures: Mapping[str, tuple[MixFigures, MixFigures]],
    agreement: Mapping[str, Agreement],
    *,
    limit_seconds: float,
) -> list[Target]:
    """What is wanted of the first grader of each pair beside the second, and of both on the labelled cases."""
    poison = figures["1 % poison"][0]
    num_worse = sum(row.num_right < row.num_right_reference for row in agreement.values())
    return [
        _ratio_target("plain integers", figures, wanted=5.0),
        _ratio_target("mixed expressions", figures, wanted=1.0),
        _bound_target("p99 ms with poison", poison.p99_ms, limit_seconds * 1000),
        _bound_target("p99 ms of the other samples with poison", poison.p99_without_poison_ms, 50.0),
        Target(
            name="classes with fewer right verdicts than the reference",
            seen=num_worse,
            wanted="0",
            is_met=num_worse == 0,
        ),
    ]


def _ratio_target(mix: str, figures: Mapping[str, tuple[MixFigures, MixFigures]], *, wanted: float) -> Target:
    ours, theirs = figures[mix]
    ratio = ours.samples_per_second_per_core / theirs.samples_per_second_per_core
    return Target(
        name=f"rate on {mix} over the reference's", seen=ratio, wanted=f"at least {wanted:g}", is_met=ratio >= wanted
    )


def _bound_target(name: str, seen: float, bound: float) -> Target:
    return Target(name=name, seen=seen, wanted=f"under {bound:g}", is_met=seen < bound)
