"""The end of a run on the terminal."""

import io
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from services.cli.records import Evaluation, ExampleReply, PassRate
from services.cli.run_folder import RunFolder
from services.cli.smoke.evidence import RunFigures
from services.cli.smoke.session import RunResult
from services.cli.smoke.summary import print_summary
from services.cli.smoke.verdict import Outcome, Verdict
from tests.unit.cli.sample_records import make_evaluation, make_report, make_trainer_status


def test_summary_shows_before_and_after_the_replies_and_the_records(tmp_path: Path) -> None:
    examples = (
        ExampleReply(prompt="<|user|>47+85", response="<think>231</think>\\boxed{132}", label="132", reward=1.0),
        ExampleReply(prompt="[red]1\n2", response="x" * 200, label="3", reward=0.0),
    )
    figures = RunFigures(
        before=make_evaluation(0.396),
        after=replace(make_evaluation(0.989, step=30), examples=examples),
        reports=[make_report(0)],
        session_reports=[make_report(0)],
        trainer=make_trainer_status(),
        rollouts=[],
        num_queued_at_start=0,
        num_queued_at_end=0,
        samples_per_prompt=8,
    )
    output = io.StringIO()
    verdict = Verdict(outcome=Outcome.LEARNED, reason="held-out accuracy 0.396 to 0.989")
    print_summary(
        Console(file=output, width=60),
        RunResult(figures=figures, verdict=verdict),
        RunFolder(tmp_path, "smoke"),
    )
    lines = output.getvalue().splitlines()
    assert any("accuracy" in line and "0.396" in line and "0.989" in line for line in lines)
    assert lines[-5:] == [
        "  <|user|>47+85 -> <think>231</think>\\boxed{132}   (answer 132: right)",
        "  [red]1\\n2 -> " + "x" * 99 + "…   (answer 3: wrong)",
        f"records: {tmp_path}/smoke",
        f"learning curve: {tmp_path}/smoke/learning_curve.png",
        "learned: held-out accuracy 0.396 to 0.989",
    ]


def table_of(before: Evaluation, after: Evaluation, folder: Path) -> list[str]:
    """The lines of the table, with single spaces and without its frame."""
    figures = RunFigures(
        before=before,
        after=after,
        reports=[make_report(0)],
        session_reports=[make_report(0)],
        trainer=make_trainer_status(),
        rollouts=[],
        num_queued_at_start=0,
        num_queued_at_end=0,
        samples_per_prompt=8,
    )
    output = io.StringIO()
    verdict = Verdict(outcome=Outcome.LEARNED, reason="")
    result = RunResult(figures=figures, verdict=verdict)
    print_summary(Console(file=output, width=80), result, RunFolder(folder, "smoke"))
    return [" ".join(line.replace("│", " ").split()) for line in output.getvalue().splitlines()]


def test_several_replies_a_prompt_add_pass_rates(tmp_path: Path) -> None:
    rates = (PassRate(k=1, rate=0.25), PassRate(k=2, rate=0.5), PassRate(k=3, rate=0.625))
    before = replace(make_evaluation(0.1), samples_per_prompt=3, pass_rates=rates)
    after = replace(make_evaluation(0.9), samples_per_prompt=3, pass_rates=(*rates[:2], PassRate(k=3, rate=1.0)))
    lines = table_of(before, after, tmp_path)
    assert "held-out prompts (2009, 3 replies each)" in lines
    assert [line for line in lines if line.startswith("pass@")] == [
        "pass@1 0.250 0.250",
        "pass@2 0.500 0.500",
        "pass@3 0.625 1.000",
    ]


def test_one_reply_a_prompt_shows_lengths_and_no_pass_rates(tmp_path: Path) -> None:
    lines = table_of(make_evaluation(0.1), make_evaluation(0.9), tmp_path)
    assert "held-out prompts (2009)" in lines
    assert not any("pass@" in line for line in lines)
    assert "median, 90 %, longest 7.5, 12, 16 7.5, 12, 16" in lines
    assert "cut at the limit 0.125 0.125" in lines
