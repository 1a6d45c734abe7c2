import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.reward.graders.comparison import compare
from services.reward.graders.extraction import answer_part_of, boxes, last_answer_line, last_box, without_end_of_turn
from services.reward.graders.spelling import normal_spelling
from services.reward.scorer import Rule
from tests.unit.reward.graders.fuzzing import fuzz

_NINES = "9" * 30
POISON = [
    "99999999!",
    "3!!!!!!!!!",
    "9^{9^{9^9}}",
    "10^{10^{10}}",
    "2^" * 3000 + "2",
    f"{_NINES}^{{{_NINES}}}",
    "1e999999999",
    "(x+1)^{999999999}",
    r"\binom{999999999}{499999999}",
    r"\sin(10^{10^{9}})",
    r"\exp(\exp(\exp(100)))",
    r"\sum_{k=1}^{99999999} k^{k}",
    r"\log_{1}{5}",
    "0^{0}",
    r"\frac{0}{0}",
    r"\sqrt[0]{5}",
    "{" * 50_000 + "}" * 50_000,
    r"\{" * 3000 + r"\}" * 3000,
    "(" * 2_000 + "x" + ")^{2}" * 2_000,
    r"\sqrt{" * 500 + "2" + "}" * 500,
    r"\frac{" * 3000,
    r"\left(" * 5000,
    r"\begin{pmatrix}" + "1&" * 9000 + r"1\end{pmatrix}",
    "a" * 40 + "," * 5_000 + " " * 5_000 + "!",
    "1," * 40_000 + "1",
    "-" * 50_000 + "1",
    "x" * 5000,
    "1" * 100_000,
    "0." + "0" * 50_000 + r"\overline{3}",
    r"\text{" + "a " * 20_000 + "}",
    "\\" * 60_000,
    "𝟛" * 3000,
    "$" * 60_000,
    "|" * 5001,
    "*" * 60_000,
    " " * 100_000 + "5 5",
    "5" + " " * 60_000 + "x",
    "answer is " * 9000,
    "=" * 20_000,
    "1" + ",000" * 900 + "x",
    r"\boxed{" * 300,
    r"\boxed{" * 12_000 + "7" + "}" * 12_000,
    "{" * 900 + "7x" + "}" * 900,
    "answer" + " " * 1990 + "!",
    "option" + " \n" * 1000 + "!",
    r"\frac{1}{" * 200 + "7x" + "}" * 200,
    "7" + r"\text{ " * 500,
    "|" + "|x" * 700,
    "1," * 39 + r"\sqrt{2}",
]


@pytest.mark.parametrize("poison", POISON, ids=range(len(POISON)))
@pytest.mark.parametrize("kind", ["boxed", "dapo", "f1", "gpqa"])
def test_poison_is_wrong_and_costs_nothing(graders, kind, poison):
    response = f"Answer: {poison}" if kind == "dapo" else f"</think>\\boxed{{{poison}}}"
    if kind == "gpqa":
        response = poison
    started = time.monotonic()
    judgement = graders[kind].grade(prompt="", response=response, label="D" if kind == "gpqa" else "7")
    assert judgement.value <= 0
    assert time.monotonic() - started < 0.5


@pytest.mark.parametrize("poison", POISON, ids=range(len(POISON)))
def test_poisoned_label_costs_nothing(poison):
    started = time.monotonic()
    assert not compare("7", poison).is_equal
    assert time.monotonic() - started < 0.5


@pytest.mark.parametrize("answer", ["99999999!", "9^{9^{9^9}}", "(x+1)^{" + "9" * 500 + "}", "(" * 70 + "1" + ")" * 70])
def test_bound_that_is_passed_is_the_rule(answer):
    assert compare(answer, r"\frac{5}{3}").rule == Rule.TOO_COMPLEX


@given(st.text())
@settings(deadline=None)
def test_extraction_takes_any_text(text):
    for find in (answer_part_of, boxes, last_answer_line, last_box, without_end_of_turn, normal_spelling):
        find(text)
        find(rf"</think>\boxed{{{text}")
        find(rf"Answer: {text}")


@given(st.text(), st.text(min_size=1))
@settings(deadline=None)
def test_any_two_texts_are_compared(answer, label):
    assert compare(answer, label).is_equal in (True, False)


def test_random_replies_raise_nothing(graders):
    report = fuzz(graders, num_replies=3000, seed=7)
    assert (report.num_errors, report.first_error) == (0, "")
    assert report.max_seconds < 0.5, report.slowest
