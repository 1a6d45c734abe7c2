"""What the user sees while a run goes on: one protocol, and plain lines for anything but a terminal."""

import time
from collections.abc import Callable
from typing import Protocol

from services.cli.records import StepReport


class RunView(Protocol):
    """Shows a run. Calls come from one thread."""

    def say(self, text: str) -> None:
        """A line that stays."""
        ...

    def progress(self, text: str) -> None:
        """What is going on now; replaced by the next call."""
        ...

    def step(self, report: StepReport, *, num_steps: int, tokens_per_second: float) -> None:
        """A step ended.

        Args:
            num_steps: steps of the whole run.
            tokens_per_second: response tokens generated per second since the step before.
        """
        ...

    def close(self) -> None:
        """Gives the terminal back. Closing twice is the same as once."""
        ...


class PlainView:
    """One line per event, for logs and pipes; progress that only counts is shown every ten seconds."""

    _PROGRESS_SECONDS = 10.0

    def __init__(self, write: Callable[[str], None], *, clock: Callable[[], float] = time.monotonic) -> None:
        self._write = write
        self._clock = clock
        self._last_topic = ""
        self._last_time = 0.0

    def say(self, text: str) -> None:
        """Writes the line."""
        self._write(text)

    def progress(self, text: str) -> None:
        """Writes the line when its first words are new, or after a while."""
        topic, now = text.partition(":")[0], self._clock()
        if topic != self._last_topic or now - self._last_time >= self._PROGRESS_SECONDS:
            self._last_topic, self._last_time = topic, now
            self._write(text)

    def step(self, report: StepReport, *, num_steps: int, tokens_per_second: float) -> None:
        """Writes the figures as one line."""
        figures = step_figures(report, tokens_per_second=tokens_per_second)
        text = "  ".join(f"{name} {value}" for name, value in figures.items() if value != "-")
        self._write(f"step {report.step + 1}/{num_steps}  {text}")

    def close(self) -> None:
        """Nothing to do."""


def step_figures(report: StepReport, *, tokens_per_second: float) -> dict[str, str]:
    """The figures of a step by the names the user sees; "-" is not known."""
    accuracy = report.held_out_accuracy
    figures = {
        "reward": f"{report.mean_reward:.3f}",
        "thinking": f"{report.thinking_rate:.2f}",
        "held-out": "-" if accuracy is None else f"{accuracy:.3f}",
        "lag": f"{report.mean_lag_steps:.1f}",
        "accept length": f"{report.accept_length:.2f}" if report.accept_length else "-",
        "tokens/s": f"{tokens_per_second:.0f}",
        "sync s": f"{report.sync_seconds:.2f}",
        "queue": str(report.queue_depth),
        "dropped": ", ".join(f"{n} {reason}" for reason, n in sorted(report.num_groups_dropped.items())) or "-",
    }
    if not report.is_committed:
        figures["version"] = "aborted"
    return figures
