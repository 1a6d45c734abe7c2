"""What the user reads of scores: a summary table, and why one row has its score."""

from collections import Counter
from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from services.cli.reward.rows import Row
from services.common.records import Score
from services.reward.scorer import Rule

_MAX_TEXT = 500
_MEANINGS = {
    "string": "compared as text after normalising",
    "numeric": "compared as exact numbers",
    "symbolic": "compared as expressions",
    "structure": "the kind or size of a list, set, tuple, interval, equation or matrix decided",
    "choice": "letters of choices were compared",
    "overlap": "shared words were counted",
    "remote": "an HTTP service decided",
    "custom": "the recipe's own function decided",
    "mix": "a weighted sum of several graders and terms",
    "too_complex": "a bound on size, depth or digits was passed before any work was started",
    "no_answer": "no answer was found where the grader looks",
    "several_answers": "there are several answers where one is wanted",
    "bad_label": "the label is no answer that can be compared",
    "timeout": "the grader was stopped at its time limit",
    "error": "the grader could not judge this",
}


def print_summary(console: Console, rows: Sequence[Row], scores: Sequence[Score], *, seconds: float) -> None:
    """Prints accuracy, reasons, timeouts and times."""
    num_samples = len(scores)
    num_right = sum(score.value > 0 for score in scores)
    table = Table(title=f"{num_samples} samples")
    table.add_column("")
    table.add_column("samples", justify="right")
    table.add_column("share", justify="right")
    table.add_row("right (accuracy)", str(num_right), _share(num_right, num_samples))
    table.add_row("with an error", *_count_and_share([bool(score.error) for score in scores]))
    table.add_row("timeouts", *_count_and_share([score.rule == Rule.TIMEOUT for score in scores]))
    table.add_section()
    for rule, count in Counter(score.rule for score in scores).most_common():
        table.add_row(f"decided by {rule}", str(count), _share(count, num_samples))
    console.print(table)
    num_boxed = sum("\\boxed" in row.item.response for row in rows)
    if num_right == 0 and num_boxed:
        console.print(
            f"no score is positive although {num_boxed} replies have boxed answers; check the grader, the labels, and "
            "whether replies end their thinking (--explain N shows one)",
            style="yellow",
            soft_wrap=True,
        )
    times = sorted(score.seconds for row, score in zip(rows, scores, strict=True) if row.score is None)
    if times:
        mean = sum(score.value for score in scores) / num_samples
        console.print(
            f"mean score {mean:.4f}; {seconds:.1f} s in all; a sample took {_milliseconds(times, 0.5)} (median), "
            f"{_milliseconds(times, 0.99)} (99 %), {_milliseconds(times, 1.0)} (most)",
            highlight=False,
            soft_wrap=True,
        )


def explain(console: Console, row: Row, score: Score) -> None:
    """Prints one row: what was looked at, what was found, what decided."""
    table = Table(title=f"line {row.number}", show_header=False)
    table.add_column("")
    table.add_column("", overflow="fold")
    meaning = _MEANINGS.get(score.rule, "")
    for name, text in (
        ("prompt (end)", row.item.prompt[-_MAX_TEXT:]),
        ("reply (end)", row.item.response[-_MAX_TEXT:]),
        ("label", row.item.label),
        ("grader", row.item.grader),
        ("extracted", score.extracted or "nothing"),
        ("decided by", f"{score.rule}: {meaning}" if meaning else score.rule),
        ("value", f"{score.value:g}"),
        ("seconds", f"{score.seconds:.4f}"),
        ("error", score.error or "none"),
    ):
        table.add_row(name, _plain(text))
    console.print(table)


def _plain(text: str) -> str:
    """The text without markup, also when it holds what no terminal can show."""
    return escape(text.encode("utf-8", errors="backslashreplace").decode())


def _count_and_share(flags: Sequence[bool]) -> tuple[str, str]:
    return str(sum(flags)), _share(sum(flags), len(flags))


def _share(count: int, total: int) -> str:
    return f"{count / total:.1%}" if total else "-"


def _milliseconds(sorted_seconds: Sequence[float], share: float) -> str:
    index = min(int(share * len(sorted_seconds)), len(sorted_seconds) - 1)
    return f"{sorted_seconds[index] * 1000:.1f} ms"
