r"""Units of measure at the end of an answer: which are the same, and how they convert."""

import re
from dataclasses import dataclass
from fractions import Fraction


@dataclass(frozen=True, kw_only=True)
class Unit:
    """A unit; quantities of one dimension compare by value times factor."""

    dimension: str
    """Such as length or length^2; empty for a counted thing, which matches anything."""
    factor: Fraction
    """How many of the dimension's base units it is."""


# dimension -> {names: factor}; names in lower case, singular.
_TABLE: dict[str, dict[str, str]] = {
    "length": {
        "mm millimeter millimetre": "1/1000", "cm centimeter centimetre": "1/100", "m meter metre": "1",
        "km kilometer kilometre": "1000", "in inch inche": "0.0254", "ft foot feet": "0.3048", "yd yard": "0.9144",
        "mi mile": "1609.344",
    },
    "time": {
        "ms millisecond": "1/1000", "s sec second": "1", "min minute": "60", "h hr hour": "3600", "day": "86400",
        "week": "604800",
    },
    "months": {"month": "1", "yr year": "12"},
    "mass": {
        "mg milligram": "1/1000", "g gram": "1", "kg kilogram": "1000", "lb": "453.59237",
        "oz ounce": "28.349523125",
    },
    "volume": {"ml milliliter millilitre": "1/1000", "l liter litre": "1"},
    "dollars": {"cent": "1/100", "dollar buck usd": "1"},
    "euros": {"euro eur": "1"},
    "yen": {"yen jpy": "1"},
    "pounds": {"pound gbp": "1"},
    "angle": {"degree deg": "1"},
    "radians": {"radian rad": "1"},
    "temperature": {"celsiu celsius": "1"},
    "temperature f": {"fahrenheit": "1"},
    "speed": {"mph": "1.609344", "kph kmh": "1"},
}  # fmt: skip
_UNITS = {
    name: (dimension, Fraction(factor))
    for dimension, rows in _TABLE.items()
    for names, factor in rows.items()
    for name in names.split()
}
# Units of one or two letters may as well be variables; they count only after a space or within \text{}.
_POWERS = {"square": 2, "sq": 2, "cubic": 3, "cu": 3}
_TEXT_UNIT = re.compile(r"\s*\\text\s*\{\s*([^{}\\]{1,60}?)\s*\}\s*(?:\^\s*\{?\s*([23])\s*\}?)?$")
_PLAIN_UNIT = re.compile(r"(?<=[0-9})]) ?([A-Za-z][A-Za-z./ ]{0,40}?)\s*(?:\^\s*\{?\s*([23])\s*\}?)?$")
_INNER_POWER = re.compile(r"([a-z./ ]{1,40}?)\s*\^?\s*([23])")
_DEGREE_UNIT = re.compile(r"\s*\\degree\s*(?:\\text\s*\{\s*([CF])\s*\}|([CF]))?$")
_CURRENCIES = {r"\dollar": "dollar", r"\euro": "euro", r"\pound": "pound", r"\yen": "yen"}
_CURRENCY = re.compile(r"(-?)\s*(\\(?:dollar|euro|pound|yen))(?![A-Za-z])\s*")
_NO_UNITS = frozenset(("and", "or", "if", "for", "pi", "i", "e", "x", "y", "mod", "base", "to", "not", "but", "is"))
_ANGLE_FUNCTION = re.compile(r"\\?(?:sin|cos|tan|cot|sec|csc)(?![a-z])")
_MULTIPLES = {"hundred": 100, "thousand": 1000, "million": 10**6, "billion": 10**9, "trillion": 10**12}

_MULTIPLE = "|".join(_MULTIPLES)
_TEXT_MULTIPLE = re.compile(rf"\\text\s*\{{\s*((?:{_MULTIPLE})(?: [a-z]{{1,20}})?)\s*\}}$", re.IGNORECASE)
_MULTIPLE_AND_UNIT = re.compile(rf" ({_MULTIPLE}) ([a-z]{{1,20}})$", re.IGNORECASE)


def split_unit(text: str) -> tuple[str, Unit | None]:
    """The text without its unit, and the unit; (text, None) when it has none."""
    text, currency = _without_currency(_TEXT_MULTIPLE.sub(r" \1", text))
    if _ANGLE_FUNCTION.search(text):
        return text, currency
    if match := _DEGREE_UNIT.search(text):
        name = {"C": "celsius", "F": "fahrenheit"}.get(match.group(1) or match.group(2) or "", "degree")
        return _with_rest(text, match, named_unit(name, 1), currency)
    if match := _TEXT_UNIT.search(text):
        name, power = _split_power(match.group(1).strip().casefold())
        if _is_unit_text(name) and text[: match.start()].strip():
            return _with_rest(text, match, named_unit(name, int(match.group(2) or power)), currency)
    if match := _MULTIPLE_AND_UNIT.search(text):
        return f"{text[: match.start()]} {match.group(1)}", named_unit(match.group(2).casefold(), 1)
    if (match := _PLAIN_UNIT.search(text[-60:])) and (unit := _plain_unit(match)):
        return _with_rest(text, match, unit, currency, offset=max(0, len(text) - 60))
    return text, currency


def split_multiple(text: str) -> tuple[str, int]:
    """The text without a word such as million at its end, and that number."""
    head, _, last = text.replace(r"\text{", " ").replace("}", " ").strip().rpartition(" ")
    if last.casefold() in _MULTIPLES and head.strip() and head.strip()[-1].isdigit():
        return head.strip(), _MULTIPLES[last.casefold()]
    return text, 1


def named_unit(name: str, power: int) -> Unit:
    """The unit of a name; a counted thing if it is no unit of measure."""
    words = name.replace(".", "").replace("-", " ").split()
    if len(words) > 1 and words[0] in _POWERS:
        power, words = _POWERS[words[0]], words[1:]
    word = "".join(words)
    if "/" in word or "per" in words:
        return Unit(dimension=f"rate {word}", factor=Fraction(1))
    known = _UNITS.get(word) or _UNITS.get(word.removesuffix("s")) or _UNITS.get(word.removesuffix("es"))
    if known is None:
        return Unit(dimension="", factor=Fraction(1))
    dimension, factor = known
    return Unit(dimension=dimension if power == 1 else f"{dimension}^{power}", factor=factor**power)


def ratio_of(answer: Unit | None, label: Unit | None) -> Fraction | None:
    """What an answer's number is multiplied by to compare it with the label's; None when the units contradict."""
    if answer is None or label is None or not answer.dimension or not label.dimension:
        return Fraction(1)
    if answer.dimension.startswith("rate") != label.dimension.startswith("rate"):
        return Fraction(1)
    if answer.dimension.startswith("rate"):
        return Fraction(1)
    return answer.factor / label.factor if answer.dimension == label.dimension else None


def _split_power(name: str) -> tuple[str, int]:
    match = _INNER_POWER.fullmatch(name)
    return (match.group(1), int(match.group(2))) if match else (name, 1)


def _is_unit_text(name: str) -> bool:
    """Whether the text may name what is counted: "or 35" and "hours and 30 minutes" say more than that."""
    return bool(name) and not any(map(str.isdigit, name)) and not _NO_UNITS.intersection(name.replace(",", " ").split())


def _without_currency(text: str) -> tuple[str, Unit | None]:
    match = _CURRENCY.match(text)
    if match:
        return match.group(1) + text[match.end() :], named_unit(_CURRENCIES[match.group(2)], 1)
    for sign, name in _CURRENCIES.items():
        if text.endswith(sign):
            return text.removesuffix(sign).strip(), named_unit(name, 1)
    return text, None


def _plain_unit(match: re.Match[str]) -> Unit | None:
    first, _, rest = match.group(1).strip().casefold().partition(" ")
    if first in _MULTIPLES:
        # The number's own word; split_multiple reads it.
        return None
    name = f"{first} {rest}".strip()
    has_space = match.group(0).startswith(" ")
    if len(name) <= 2 and not has_space and name not in ("cm", "km", "kg", "ft", "mm", "ml", "mi", "hr"):
        return None
    unit = named_unit(name, int(match.group(2) or 1))
    if unit.dimension:
        return unit
    # A word of its own behind a number counts things: "34 apples".
    is_word = has_space and len(name) > 3 and name.replace(" ", "").isalpha()
    return unit if is_word and not _NO_UNITS.intersection(name.split()) else None


def _with_rest(
    text: str, match: re.Match[str], unit: Unit, currency: Unit | None, *, offset: int = 0
) -> tuple[str, Unit | None]:
    rest = text[: offset + match.start()].strip()
    # "\$5 per hour" and "\$5 each": the currency says more than the thing counted.
    return rest, currency if currency and not unit.dimension else unit
