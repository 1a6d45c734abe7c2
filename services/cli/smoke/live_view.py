"""The live view in a terminal: current figures and three curves, redrawn in place."""

import time
from collections.abc import Sequence

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from services.cli.records import StepReport
from services.cli.smoke.view import step_figures

_BLOCKS = "▁▂▃▄▅▆▇█"
_WIDTH = 40


def sparkline(values: Sequence[float], *, low: float, high: float, width: int = _WIDTH) -> str:
    """The last `width` values as bars; low is the lowest bar, high the full one."""
    top = len(_BLOCKS) - 1
    return "".join(_BLOCKS[round(top * min(1.0, max(0.0, (value - low) / (high - low))))] for value in values[-width:])


class LiveView:
    """Draws below the lines that were said."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._started = time.monotonic()
        self._progress = "starting"
        self._spinner = Spinner("dots")
        self._reports: list[StepReport] = []
        self._num_steps = 0
        self._tokens_per_second = 0.0
        self._held_out = "-"
        self._live = Live(console=console, get_renderable=self._render, refresh_per_second=5, transient=True)
        self._live.start()

    def say(self, text: str) -> None:
        """Prints the line above the view."""
        self._console.print(text, markup=False, highlight=False)

    def progress(self, text: str) -> None:
        """Shows the line beside the spinner."""
        self._progress = text

    def step(self, report: StepReport, *, num_steps: int, tokens_per_second: float) -> None:
        """Takes the figures into the view."""
        self._reports.append(report)
        self._num_steps = num_steps
        self._tokens_per_second = tokens_per_second
        if report.held_out_accuracy is not None:
            self._held_out = f"{report.held_out_accuracy:.3f}"
        self._progress = f"step {report.step + 1} of {num_steps} done"

    def close(self) -> None:
        """Takes the view away and leaves the lines."""
        self._live.stop()

    def _render(self) -> RenderableType:
        seconds = int(time.monotonic() - self._started)
        self._spinner.update(text=f"{self._progress}  ({seconds // 60}:{seconds % 60:02d})")
        if not self._reports:
            return self._spinner
        return Group(self._figures(), self._curves(), self._spinner)

    def _figures(self) -> Table:
        report = self._reports[-1]
        figures = {
            "step": f"{report.step + 1}/{self._num_steps}",
            **step_figures(report, tokens_per_second=self._tokens_per_second),
            "held-out": self._held_out,
        }
        table = Table(expand=False)
        for name in figures:
            table.add_column(name, justify="right")
        table.add_row(*figures.values())
        return table

    def _curves(self) -> Table:
        curves = {
            "reward": sparkline([r.mean_reward for r in self._reports], low=0.0, high=1.0),
            "thinking rate": sparkline([r.thinking_rate for r in self._reports], low=0.0, high=1.0),
            "accept length": sparkline([r.accept_length for r in self._reports], low=1.0, high=2.0),
        }
        grid = Table.grid(padding=(0, 2))
        for name, curve in curves.items():
            grid.add_row(Text(name), Text(curve, style="green"))
        return grid
