"""Properties: another spelling of an answer scores alike, a neighbouring number does not."""

from fractions import Fraction

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from services.reward.graders.comparison import compare

_INTEGERS = st.integers(min_value=-(10**30), max_value=10**30)
_SMALL = st.integers(min_value=1, max_value=50)
_FRACTIONS = st.fractions(min_value=-1000, max_value=1000, max_denominator=1000)


def is_same(answer, label):
    return compare(answer, label).is_equal


def latex(value):
    return rf"\frac{{{value.numerator}}}{{{value.denominator}}}"


@given(_INTEGERS)
def test_spellings_of_an_integer(number):
    for spelling in (
        f"{number:,}",
        f"{number:,}".replace(",", "{,}"),
        f"{number:,}".replace(",", r",\!"),
        f"{number}.0",
        f"${number}$",
        rf"\text{{{number}}}",
        rf"\mathbf{{{number}}}",
        f"x = {number}",
        f"{number}.",
        str(number).replace("-", "−"),
        rf"\frac{{{3 * number}}}{{3}}",
        rf"{number}\text{{ cm}}",
    ):
        assert is_same(spelling, str(number)), spelling
        assert is_same(str(number), spelling), spelling


@given(_INTEGERS, st.integers(min_value=-1000, max_value=1000).filter(bool))
def test_another_integer_is_wrong_in_every_spelling(number, difference):
    other = number + difference
    for spelling in (
        str(other),
        f"{other:,}",
        f"{other}.0",
        f"${other}$",
        f"x = {other}",
        rf"\frac{{{3 * other}}}{{3}}",
    ):
        assert not is_same(spelling, str(number)), spelling


@given(_FRACTIONS)
def test_spellings_of_a_fraction(value):
    text = f"{value.numerator}/{value.denominator}"
    assert is_same(latex(value), text)
    assert is_same(latex(value).replace("frac", "dfrac"), latex(value))
    assert is_same(rf"\frac{{{2 * value.numerator}}}{{{2 * value.denominator}}}", latex(value))
    assert not is_same(latex(value + Fraction(1, 10**30)), latex(value))


@given(_FRACTIONS)
def test_mixed_number_is_the_sum_of_its_parts(value):
    whole, rest = divmod(abs(value), 1)
    assume(whole and rest)
    sign = "-" if value < 0 else ""
    assert is_same(rf"{sign}{whole}\frac{{{rest.numerator}}}{{{rest.denominator}}}", latex(value))
    assert is_same(f"{sign}{whole} {rest.numerator}/{rest.denominator}", latex(value))


@given(_INTEGERS, st.integers(min_value=0, max_value=12))
def test_decimal_and_scientific_notation(number, places):
    value = Fraction(number, 10**places)
    assert is_same(rf"{number} \times 10^{{-{places}}}", latex(value))
    assert is_same(f"{number}e-{places}", latex(value))


@given(_SMALL, _SMALL)
def test_square_factor_may_be_drawn_from_a_root(factor, radicand):
    assert is_same(rf"{factor}\sqrt{{{radicand}}}", rf"\sqrt{{{factor * factor * radicand}}}")
    assert not is_same(rf"{factor}\sqrt{{{radicand}}}", rf"\sqrt{{{factor * factor * radicand + 1}}}")


@given(st.lists(st.integers(min_value=-99, max_value=99), min_size=2, max_size=6, unique=True), st.randoms())
def test_order_counts_in_tuples_only(numbers, random_):
    shuffled = numbers[:]
    random_.shuffle(shuffled)
    inside, shuffled_inside = ", ".join(map(str, numbers)), ",".join(map(str, shuffled))
    assert is_same(rf"\{{{shuffled_inside}\}}", rf"\{{{inside}\}}")
    assert is_same(", ".join(map(str, shuffled)), inside)
    assert is_same(f"({shuffled_inside})", f"({inside})") == (shuffled == numbers)
    assert not is_same(rf"\{{{inside}\}}", f"({inside})")
    assert not is_same(f"({inside})", rf"\{{{inside}\}}")


@given(st.lists(st.integers(min_value=-9, max_value=9), min_size=1, max_size=4), st.integers(min_value=-5, max_value=5))
@settings(deadline=None)
def test_expanded_product_of_linear_factors(roots, change):
    coefficients = [1]
    for root in roots:
        # Times (x - root), from the constant up.
        coefficients = [
            (coefficients[i - 1] if i else 0) - (root * coefficients[i] if i < len(coefficients) else 0)
            for i in range(len(coefficients) + 1)
        ]
    coefficients[0] += change
    expanded = "+".join(f"({coefficient})x^{{{power}}}" for power, coefficient in enumerate(coefficients))
    factored = "".join(f"(x-({root}))" for root in roots)
    assert is_same(expanded, factored) == (change == 0)


@given(st.sampled_from(["(", "["]), st.sampled_from([")", "]"]), _SMALL, _SMALL)
def test_ends_of_an_interval_count(opening, closing, low, size):
    interval = f"{opening}{low},{low + size}{closing}"
    assert is_same(rf"\left{opening} {low}, {low + size} \right{closing}", interval)
    less = "<" if opening == "(" else r"\le"
    upper_less = "<" if closing == ")" else r"\leq"
    assert is_same(f"{low} {less} x {upper_less} {low + size}", interval)
    other = "[" if opening == "(" else "("
    assert not is_same(f"{other}{low},{low + size}{closing}", interval)
