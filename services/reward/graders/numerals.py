"""Plain numbers as exact fractions: integers, decimals, thousands commas, scientific notation, a/b."""

import re
from fractions import Fraction

# Python refuses to read integers of more than 4300 digits; no answer needs a tenth of that.
_MAX_LENGTH = 400
_MAX_EXPONENT = 400
_INTEGER = r"[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+"
_NUMBER = re.compile(rf"([+-]?) ?(?:({_INTEGER})(?:\.([0-9]*))?|\.([0-9]+))(?:[eE]([+-]?[0-9]{{1,4}}))?")
_PARTED_BY_SPACE = re.compile(r"[+-]?[0-9]{1,3}(?: [0-9]{3})+")
_RATIO = re.compile(r"([+-]?) ?([0-9]+) ?/ ?([0-9]+)")


def exact_number(text: str) -> Fraction | None:
    """The value of one plain number; None for anything else, and for 1/0.

    Commas must part thousands: "1,234" is a number, "1,23" and "(1,234)" are not.
    """
    if len(text) > _MAX_LENGTH:
        return None
    if match := _NUMBER.fullmatch(text):
        sign, whole, decimals, only_decimals, exponent = match.groups()
        digits = f"{sign}{(whole or '0').replace(',', '')}.{decimals or only_decimals or '0'}"
        if exponent is not None and abs(int(exponent)) > _MAX_EXPONENT:
            return None
        return Fraction(f"{digits}e{exponent}" if exponent else digits)
    if _PARTED_BY_SPACE.fullmatch(text):
        return Fraction(text.replace(" ", ""))
    if match := _RATIO.fullmatch(text):
        sign, numerator, denominator = match.groups()
        if int(denominator) != 0:
            return Fraction(int(f"{sign}{numerator}"), int(denominator))
    return None
