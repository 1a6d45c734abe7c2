r"""The three mixes of samples that graders are timed on: plain integers, mixed expressions, and 1 % poison. Pure."""

import random
from collections.abc import Callable
from dataclasses import dataclass

POISON_SHARE = 0.01
# Each stalls a naive grader: numbers too large to write down, deep nesting, and a search that backtracks for ever.
POISON = (
    "99999999!",
    "9^{9^{9^9}}",
    "{" * 50_000 + "}" * 50_000,
    "(" * 2_000 + "x" + ")^{2}" * 2_000,
    "a" * 40 + "," * 5_000 + " " * 5_000 + "!",
    r"\sqrt{" * 500 + "2" + "}" * 500,
)


@dataclass(frozen=True, kw_only=True)
class MixSample:
    """A reply with its label and whether the label is what it says."""

    response: str
    """The reply."""
    label: str
    """The right answer."""
    is_right: bool
    """The reply's answer equals the label."""
    is_poison: bool
    """The reply is made to stall a grader."""


def plain_integers(num_samples: int, random_: random.Random) -> list[MixSample]:
    """Boxed integers of one to six digits, half of them off by a little."""
    return [_sample(*_integer(random_), random_) for _ in range(num_samples)]


def mixed_expressions(num_samples: int, random_: random.Random) -> list[MixSample]:
    """Fractions, radicals, powers, tuples, sets, intervals and polynomials, half of them wrong."""
    return [_sample(*random_.choice(_EXPRESSIONS)(random_), random_) for _ in range(num_samples)]


def with_poison(num_samples: int, random_: random.Random) -> list[MixSample]:
    """Integers and expressions by halves, with POISON_SHARE of poison between them."""
    half = num_samples // 2
    samples = plain_integers(half, random_) + mixed_expressions(num_samples - half, random_)
    random_.shuffle(samples)
    for number in range(max(1, round(POISON_SHARE * num_samples))):
        poison = MixSample(
            response=rf"The answer is \boxed{{{POISON[number % len(POISON)]}}}.",
            label="5",
            is_right=False,
            is_poison=True,
        )
        samples[random_.randrange(num_samples)] = poison
    return samples


MIXES: dict[str, Callable[[int, random.Random], list[MixSample]]] = {
    "plain integers": plain_integers,
    "mixed expressions": mixed_expressions,
    "1 % poison": with_poison,
}
"""The mixes by name."""


def _sample(answer: str, same: str, other: str, random_: random.Random) -> MixSample:
    is_right = random_.random() < 0.5
    boxed = same if is_right else other
    return MixSample(
        response=f"We compute step by step and find that the answer is $\\boxed{{{boxed}}}$.",
        label=answer,
        is_right=is_right,
        is_poison=False,
    )


# Each gives the label, another spelling of it, and an answer that looks alike and is wrong.


def _integer(random_: random.Random) -> tuple[str, str, str]:
    number = random_.randrange(10 ** random_.randint(1, 6))
    return str(number), str(number), str(number + random_.choice((1, -1, 10)))


def _fraction(random_: random.Random) -> tuple[str, str, str]:
    top, bottom = random_.randint(1, 9), random_.choice((11, 13, 17))
    return rf"\frac{{{top}}}{{{bottom}}}", rf"\dfrac{{{2 * top}}}{{{2 * bottom}}}", rf"\frac{{{bottom}}}{{{top}}}"


def _radical(random_: random.Random) -> tuple[str, str, str]:
    factor, root = random_.randint(2, 9), random_.choice((2, 3, 5, 7))
    return rf"{factor}\sqrt{{{root}}}", rf"\sqrt{{{factor * factor * root}}}", rf"{root}\sqrt{{{factor + 10}}}"


def _power(random_: random.Random) -> tuple[str, str, str]:
    base, exponent = random_.randint(2, 5), random_.randint(3, 8)
    return str(base**exponent), f"{base}^{{{exponent}}}", f"{base}^{{{exponent + 1}}}"


def _tuple(random_: random.Random) -> tuple[str, str, str]:
    first, second = random_.randint(1, 99), random_.randint(100, 199)
    return f"({first}, {second})", rf"\left({first},{second}\right)", f"({second}, {first})"


def _set(random_: random.Random) -> tuple[str, str, str]:
    first, second = random_.randint(1, 99), random_.randint(100, 199)
    return rf"\{{{first}, {second}\}}", rf"\{{{second},{first}\}}", rf"\{{{first}, {second + 1}\}}"


def _interval(random_: random.Random) -> tuple[str, str, str]:
    first, second = random_.randint(1, 99), random_.randint(100, 199)
    return f"[{first}, {second})", rf"\left[{first},{second}\right)", f"({first}, {second}]"


def _polynomial(random_: random.Random) -> tuple[str, str, str]:
    linear, constant = random_.randint(2, 9), random_.randint(2, 9)
    return f"x^2+{linear}x+{constant}", f"{constant}+{linear}x+x^2", f"x^2-{linear}x+{constant}"


def _multiple_of_pi(random_: random.Random) -> tuple[str, str, str]:
    top = random_.choice((1, 5, 7, 11))
    return rf"\frac{{{top}\pi}}{{12}}", rf"\frac{{{top}}}{{12}}\pi", rf"\frac{{{top}\pi}}{{6}}"


_EXPRESSIONS = (_fraction, _radical, _power, _tuple, _set, _interval, _polynomial, _multiple_of_pi)
