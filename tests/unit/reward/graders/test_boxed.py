import time
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.reward.graders.boxed import BoxedGrader
from services.reward.graders.comparison import compare
from services.reward.graders.equality import Verdict
from services.reward.graders.extraction import answer_part_of, braced_text
from services.reward.graders.numerals import exact_number
from services.reward.scorer import Rule


def judge(response, label, *, single=False):
    return BoxedGrader(require_single_box=single).grade(prompt="", response=response, label=label)


@pytest.mark.parametrize(
    ("response", "label", "value"),
    [
        (r"</think>\boxed{34}", "34", 1),
        (r"<think>maybe \boxed{34}</think>the answer is 34", "34", 0),
        (r"</think>first \boxed{34} then \boxed{35}", "34", 0),
        (r"</think>first \boxed{34} then \boxed{35}", "35", 1),
        (r"</think>\boxed{\frac{2}{4}}", r"\frac{1}{2}", 1),
        (r"</think>\boxed{(1,234)}", "1234", 0),
        (r"</think>\boxed{−34}", "-34", 1),
        (r"</think>\boxed{99999999!}", "5/3", 0),
        (r"\boxed{0}", "0", 1),
        (r"\boxed{33}", "33.7", 0),
        (r"\boxed{12345678901234567890}", "12345678901234567890", 1),
        (r"\boxed{12345678901234567891}", "12345678901234567890", 0),
        (r"\boxed{9007199254740993}", "9007199254740992", 0),
        (r"\boxed{1,234}", "1234", 1),
        (r"\boxed{1,23}", "123", 0),
        (r"\boxed{12,34,567}", "1234567", 0),
        (r"\boxed{1{,}234.50}", "1234.5", 1),
        (r"\boxed{0.5}", r"\dfrac12", 1),
        (r"\boxed{.5}", "1/2", 1),
        (r"\boxed{-\frac{1}{2}}", "-0.5", 1),
        (r"\boxed{\frac{-1}{2}}", "-1/2", 1),
        (r"\boxed{1/0}", "0", 0),
        (r"\boxed{132.}", "132", 1),
        (r"\boxed{ 0132 }", "132", 1),
        (r"\boxed{+7}", "7", 1),
        (r"\boxed{--7}", "7", 0),
        (r"\boxed{x^2 + 1}", "x^2+1", 1),
        (r"\boxed{\left(1, 2\right)}", "(1,2)", 1),
        (r"\boxed{$\pi$}", r"\pi", 1),
        (r"\boxed{Paris}", "London", 0),
        (r"\boxed{}", "0", 0),
        (r"\boxed {34}", "34", 1),
        (r"\boxed{34}<|endoftext|>", "34", 1),
        (r"the answer is 34", "34", 0),
        (r"\boxed34", "34", 0),
    ],
)
def test_score_of(response, label, value):
    assert judge(response, label).value == value


@pytest.mark.parametrize(
    ("response", "rule", "extracted"),
    [
        (r"\boxed{34}", Rule.STRING, "34"),
        (r"\boxed{35}", Rule.NUMERIC, "35"),
        (r"\boxed{34.0}", Rule.NUMERIC, "34.0"),
        (r"\boxed{ x }", Rule.SYMBOLIC, "x"),
        (r"34", Rule.NO_ANSWER, ""),
        (r"\boxed{34", Rule.NO_ANSWER, ""),
        (r"\boxed{1}\boxed{34", Rule.NO_ANSWER, ""),
        (r"\boxed{\frac{3}{4}}", Rule.NUMERIC, r"\frac{3}{4}"),
        (r"\boxed{\{1, 2\}}", Rule.STRUCTURE, r"\{1, 2\}"),
        (r"\boxed{\}}", Rule.STRUCTURE, r"\}"),
    ],
)
def test_rule_and_extracted_answer(response, rule, extracted):
    judgement = judge(response, "34")
    assert (judgement.rule, judgement.extracted) == (rule, extracted)


@pytest.mark.parametrize(
    ("response", "value", "rule"),
    [
        (r"<think>231</think>\boxed{132}<|endoftext|>", 1, Rule.STRING),
        (r"<think></think>\boxed{162}<|endoftext|>", 0, Rule.NUMERIC),
        (r"<think></think>\boxed{132}\boxed{132}", 0, Rule.SEVERAL_ANSWERS),
        (r"<think></think>\boxed{1}\boxed{132}", 0, Rule.SEVERAL_ANSWERS),
        (r"\boxed{\boxed{132}}", 1, Rule.STRING),
        (r"<think>\boxed{1}</think>\boxed{132}", 1, Rule.STRING),
        (r"<think>\boxed{132}", 0, Rule.NO_ANSWER),
        (r"<think></think>132", 0, Rule.NO_ANSWER),
    ],
)
def test_single_box_is_wanted_after_the_thinking(response, value, rule):
    judgement = judge(response, "132", single=True)
    assert (judgement.value, judgement.rule) == (value, rule)


@pytest.mark.parametrize(
    ("response", "answer_part"),
    [
        ("plain", "plain"),
        ("<think>a</think>b", "b"),
        ("a</think>b</think>c", "c"),
        ("<think>a", ""),
        ("<think>a</think>b<think>c", ""),
        ("<think></think>", ""),
    ],
)
def test_answer_part(response, answer_part):
    assert answer_part_of(response) == answer_part


def test_braced_text_matches_nested_braces():
    assert braced_text("x{a{b}c}d}", 1) == "a{b}c"
    assert braced_text("{a{b}", 0) is None
    assert braced_text("{\\", 0) is None


@pytest.mark.parametrize("text", ["", "-", "1e999999999", "1 2", "½", "١٢", "1/2/3", "inf", "nan", "1_000", "0x1f"])
def test_what_is_no_number(text):
    assert exact_number(text) is None


def test_number_of_thousands_of_digits_is_compared_as_text():
    assert compare("7" * 100_000, "7" * 100_000) == Verdict(True, Rule.STRING)
    assert compare("7" * 100_000, "7" * 99_999 + "8") == Verdict(False, Rule.TOO_COMPLEX)


@pytest.mark.parametrize(
    "poison",
    [
        r"\boxed{" * 20_000,
        r"\boxed{" + "{" * 50_000 + "}" * 50_000 + "}",
        r"\boxed{9^{9^{9^9}}}",
        r"\boxed{" + "1," * 40_000 + "}",
        r"\boxed{" + " " * 100_000 + "x}",
        r"\boxed" + " " * 100_000,
        "\\" * 100_000,
    ],
)
def test_hostile_reply_is_judged_in_no_time(poison):
    started = time.monotonic()
    assert judge(poison, "5").value == 0
    assert time.monotonic() - started < 0.5


@given(st.text(), st.text(min_size=1))
def test_no_text_makes_the_grader_raise(response, label):
    judge(response, label)
    assert judge(rf"\boxed{{{response}}}", label).value in (0, 1)


@given(st.fractions())
def test_spellings_of_a_number_are_equal_and_a_neighbour_is_not(number):
    text = f"{number.numerator}/{number.denominator}"
    latex = rf"\frac{{{number.numerator}}}{{{number.denominator}}}"
    assert exact_number(text) == number
    assert judge(rf"\boxed{{{latex}}}", text).value == 1
    neighbour = number + Fraction(1, 10**30)
    assert judge(rf"\boxed{{{neighbour.numerator}/{neighbour.denominator}}}", text).value == 0


@given(st.integers())
def test_thousands_commas_do_not_change_an_integer(number):
    assert exact_number(f"{number:,}") == number
