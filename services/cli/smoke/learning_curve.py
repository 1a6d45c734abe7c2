"""Draws the learning curve of a run as a PNG."""

from collections.abc import Sequence
from pathlib import Path

from services.cli.records import Evaluation, StepReport


def draw_learning_curve(
    path: Path, *, before: Evaluation, after: Evaluation, reports: Sequence[StepReport], title: str
) -> None:
    """Writes the picture: rewards, held-out accuracy and thinking rate above, accept length below, over steps."""
    # Imported here: matplotlib takes most of a second, and only this needs it.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 6), dpi=120)
    FigureCanvasAgg(figure)
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=[2, 1])
    steps = [report.step + 1 for report in reports]
    upper.plot(steps, [report.mean_reward for report in reports], label="reward (training samples)")
    upper.plot(steps, [report.thinking_rate for report in reports], label="thinking rate", linestyle="--")
    held_out = _held_out_points(before, after, reports)
    upper.plot([step for step, _ in held_out], [value for _, value in held_out], "o-", label="held-out accuracy")
    upper.set_ylim(-0.03, 1.03)
    upper.legend(loc="lower right")
    upper.set_title(title)
    lower.plot(steps, [report.accept_length for report in reports], color="tab:green")
    lower.set_ylabel("accept length")
    lower.set_xlabel("training steps")
    for axis in (upper, lower):
        axis.grid(alpha=0.3)
    figure.tight_layout()
    figure.savefig(path)


def _held_out_points(before: Evaluation, after: Evaluation, reports: Sequence[StepReport]) -> list[tuple[int, float]]:
    """(steps behind the policy, accuracy) in order; the full evaluations stand for the first and the last point."""
    points = {report.step + 1: report.held_out_accuracy for report in reports}
    points.update({before.step: before.mean_reward, after.step: after.mean_reward})
    return [(step, value) for step, value in sorted(points.items()) if value is not None]
