"""The end of a run on the terminal."""

import io
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from services.cli.records import ExampleReply
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
