"""The end of a run on the terminal: a table before and after, sample replies, where the records are, the verdict."""

from rich.console import Console
from rich.table import Table

from services.cli.records import Evaluation, ExampleReply
from services.cli.run_folder import RunFolder
from services.cli.smoke.session import RunResult

_MAX_TEXT = 100


def print_summary(console: Console, result: RunResult, folder: RunFolder) -> None:
    """Prints it."""
    figures = result.figures
    console.print(_table(figures.before, figures.after))
    lines = [
        *(_example_line(example) for example in figures.after.examples),
        f"records: {folder.path}",
        f"learning curve: {folder.curve_path}",
        f"{result.verdict.outcome.value}: {result.verdict.reason}",
    ]
    for line in lines:
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def _table(before: Evaluation, after: Evaluation) -> Table:
    each = f", {after.samples_per_prompt} replies each" if after.samples_per_prompt > 1 else ""
    table = Table(title=f"held-out prompts ({after.num_prompts}{each})")
    table.add_column("")
    table.add_column(f"step {before.step}", justify="right")
    table.add_column(f"step {after.step}", justify="right")
    table.add_row("accuracy", f"{before.mean_reward:.3f}", f"{after.mean_reward:.3f}")
    if after.samples_per_prompt > 1:
        before_rates = {item.k: f"{item.rate:.3f}" for item in before.pass_rates}
        for item in after.pass_rates:
            table.add_row(f"pass@{item.k}", before_rates.get(item.k, "-"), f"{item.rate:.3f}")
    table.add_row("thinking rate", f"{before.thinking_rate:.2f}", f"{after.thinking_rate:.2f}")
    table.add_row("reply tokens", f"{before.mean_response_tokens:.1f}", f"{after.mean_response_tokens:.1f}")
    table.add_row("  median, 90 %, longest", _length_spread(before), _length_spread(after))
    table.add_row("cut at the limit", f"{before.truncation_rate:.3f}", f"{after.truncation_rate:.3f}")
    table.add_row("accept length", f"{before.accept_length:.2f}", f"{after.accept_length:.2f}")
    return table


def _length_spread(figures: Evaluation) -> str:
    return f"{figures.median_response_tokens:g}, {figures.p90_response_tokens}, {figures.max_response_tokens}"


def _example_line(example: ExampleReply) -> str:
    mark = "right" if example.reward > 0 else "wrong"
    return f"  {_short(example.prompt)} -> {_short(example.response)}   (answer {example.label}: {mark})"


def _short(text: str) -> str:
    flat = text.replace("\n", "\\n")
    return flat if len(flat) <= _MAX_TEXT else flat[: _MAX_TEXT - 1] + "…"
