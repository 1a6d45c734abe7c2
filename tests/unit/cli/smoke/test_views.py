"""What the user sees while a run goes on."""

import io

from rich.console import Console

from services.cli.smoke.live_view import LiveView, sparkline
from services.cli.smoke.view import PlainView, step_figures
from tests.unit.cli.sample_records import make_report


def test_plain_step_line_has_every_figure() -> None:
    lines: list[str] = []
    report = make_report(4, held_out_accuracy=0.75, num_groups_dropped={"equal_rewards": 3})
    PlainView(lines.append).step(report, num_steps=30, tokens_per_second=812.4)
    assert lines == [
        "step 5/30  reward 0.500  thinking 0.60  held-out 0.750  lag 0.0  accept length 1.70  tokens/s 812"
        "  sync s 0.50  queue 32  dropped 3 equal_rewards"
    ]


def test_plain_progress_that_only_counts_is_shown_every_ten_seconds() -> None:
    lines: list[str] = []
    now = [100.0]
    view = PlainView(lines.append, clock=lambda: now[0])
    for second in range(25):
        now[0] = 100.0 + second
        view.progress(f"warm start: step {second} of 25")
    view.progress("publishing")
    assert lines == [
        "warm start: step 0 of 25",
        "warm start: step 10 of 25",
        "warm start: step 20 of 25",
        "publishing",
    ]


def test_unknown_figures_are_a_dash_and_an_aborted_version_shows() -> None:
    figures = step_figures(make_report(0, accept_length=0.0, is_committed=False), tokens_per_second=1.0)
    assert (figures["held-out"], figures["accept length"], figures["version"]) == ("-", "-", "aborted")


def test_sparkline_spans_low_to_high_and_clips() -> None:
    assert sparkline([0.0, 0.5, 1.0, 7.0, -1.0], low=0.0, high=1.0) == "▁▅██▁"
    assert sparkline([0.0] * 5 + [1.0], low=0.0, high=1.0, width=2) == "▁█"


def test_live_view_draws_figures_and_curves() -> None:
    output = io.StringIO()
    view = LiveView(Console(file=output, force_terminal=True, width=140))
    view.say("run smoke-1")
    view.step(make_report(0, held_out_accuracy=0.625), num_steps=30, tokens_per_second=500.0)
    view.step(make_report(1), num_steps=30, tokens_per_second=600.0)
    view.close()
    text = output.getvalue()
    assert "run smoke-1" in text
    for part in ("2/30", "0.625", "accept length", "thinking rate", "600", "step 2 of 30 done"):
        assert part in text
