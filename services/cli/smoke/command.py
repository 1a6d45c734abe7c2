"""`furlong smoke` on this machine: the real placement, the real view, and the summary at the end."""

import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FrameType

from rich.console import Console

from services.cli.machine import look_at_machine
from services.cli.placement.local_processes import LocalProcesses
from services.cli.placement.placement import Placement
from services.cli.smoke.flow import World, run_smoke
from services.cli.smoke.live_view import LiveView
from services.cli.smoke.options import SmokeOptions
from services.cli.smoke.summary import print_summary
from services.cli.smoke.view import PlainView, RunView

_INSTALL_SECONDS_FILE = ".install-seconds-runtime"
"""Where the furlong script notes, in the virtual environment, how long the installation took."""


def smoke_command(
    options: SmokeOptions,
    *,
    make_placement: Callable[[str], Placement],
    environment: Mapping[str, str],
    started: float,
) -> int:
    """The exit code of the run; 0 only if it reached what it is for.

    Args:
        make_placement: (prefix of shared-memory names) -> where processes run.
        started: time.monotonic() when the command began.

    Raises:
        FurlongError: it could not start, or failed.
        KeyboardInterrupt: by Ctrl-C, SIGTERM or a closed terminal; everything was stopped.
    """
    heed_signals()
    console = Console()
    world = World(
        make_placement=make_placement,
        look_at_machine=look_at_machine,
        view=_make_view(console),
        environment=environment,
        python=sys.executable,
        cache_directory=Path(".cache").absolute(),
        install_seconds=_install_seconds(),
        started=started,
    )
    result = run_smoke(options, world)
    print_summary(console, result.run, result.folder)
    return result.run.verdict.exit_code


def heed_signals() -> None:
    """Lets SIGTERM and a closed terminal end the command as Ctrl-C does. Call it on the main thread."""
    # SIGINT too: a shell starts its background jobs with it ignored.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)


def place_locally(shared_memory_prefix: str) -> Placement:
    """Processes of this machine."""
    return LocalProcesses(shared_memory_prefix=shared_memory_prefix)


def _make_view(console: Console) -> RunView:
    if console.is_terminal:
        return LiveView(console)
    return PlainView(lambda text: print(text, flush=True))


def _install_seconds() -> float:
    try:
        return float((Path(sys.prefix) / _INSTALL_SECONDS_FILE).read_text())
    except (OSError, ValueError):
        return 0.0


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
