r"""One spelling for what is written in many ways: unicode, delimiters, sizes, fonts, spacing. Keeps every meaning."""

import re
import unicodedata

_UNICODE = {
    "−": "-", "–": "-", "—": "-", "‐": "-", "‑": "-", "－": "-", "×": r"\times ", "·": r"\cdot ", "⋅": r"\cdot ",
    "∙": r"\cdot ", "÷": r"\div ", "π": r"\pi ", "∞": r"\infty ", "≤": r"\le ", "≥": r"\ge ", "≠": r"\ne ",
    "∪": r"\cup ", "∩": r"\cap ", "∈": r"\in ", "°": r"^\circ ", "±": r"\pm ", "∓": r"\mp ", "√": r"\sqrt ",
    "ℝ": r"\mathbb{R}", "∅": r"\emptyset ", "θ": r"\theta ", "α": r"\alpha ", "β": r"\beta ", "γ": r"\gamma ",
    "λ": r"\lambda ", "φ": r"\phi ", "ω": r"\omega ", "≈": r"\approx ", "€": r"\euro ", "¥": r"\yen ", "£": r"\pound ",
    "½": r"\frac{1}{2}", "⅓": r"\frac{1}{3}", "⅔": r"\frac{2}{3}", "¼": r"\frac{1}{4}", "¾": r"\frac{3}{4}",
    "⅕": r"\frac{1}{5}", "⅖": r"\frac{2}{5}", "⅗": r"\frac{3}{5}", "⅘": r"\frac{4}{5}", "⅙": r"\frac{1}{6}",
    "⅛": r"\frac{1}{8}", "⅜": r"\frac{3}{8}", "⅝": r"\frac{5}{8}", "⅞": r"\frac{7}{8}", "⟨": r"\langle ",
    "⟩": r"\rangle ", "\u2061": "", "\u200b": "", "\ufeff": "", "，": ", ", "∖": r"\setminus ", "％": "%",
}  # fmt: skip
_SUPERSCRIPTS = dict(zip("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ⁿ", "0123456789+-n", strict=True))
_SUPERSCRIPT_RUN = re.compile(f"[{''.join(_SUPERSCRIPTS)}]+")
_SUBSCRIPTS = dict(zip("₀₁₂₃₄₅₆₇₈₉", "0123456789", strict=True))
_SUBSCRIPT_RUN = re.compile(f"[{''.join(_SUBSCRIPTS)}]+")
# What parts the digits of one number by threes: 10,\!080 and 1{,}000 and 1\,000.
_THOUSANDS_MARK = re.compile(r"(?<=[0-9])(?:,\\!\s*|\{,\}|\\,|\\;|\\ |,\\,(?=[0-9]{3}(?![0-9])))(?=[0-9]{3}(?![0-9]))")
_THIN_SPACES = re.compile("(?<=[0-9])[\u00a0\u2009\u202f](?=[0-9]{3}(?![0-9]))")
_SIZES = re.compile(
    r"\\(?:left|right|displaystyle|textstyle|scriptstyle|limits|nolimits|[bB]igg?[lrm]?)(?![A-Za-z])\.?"
)
_DELIMITERS = re.compile(r"(?<!\\)\\[()\[\]]")
_ROW_SPACE = re.compile(r"\\\\\[[0-9.a-z]{1,8}\]")
_OPERATOR_NAME = re.compile(r"\\operatorname\*?\s*\{\s*([A-Za-z]{1,12})\s*\}")
_SPACING = re.compile(
    r"(?<!\\)\\[,!;:> ]|\\(?:quad|qquad|thinspace|enspace|space|hfill)(?![A-Za-z])|~|\\(?:hspace|phantom)\{[^{}]*\}"
)
_FRACTIONS = re.compile(r"\\[dtc]frac(?![A-Za-z])")
_FONTS = re.compile(
    r"\\(?:mathbf|boldsymbol|bm|mathit|mathsf|mathcal|mathnormal|underline|emph|textnormal|hbox)(?![A-Za-z])"
)
_COLORS = re.compile(r"\\(?:text)?color\s*\{[A-Za-z]{1,20}\}")
_CHOOSE = re.compile(r"\{([^{}\\]{1,40})\\choose(?![A-Za-z])([^{}]{1,40})\}")
_INTRODUCTION = re.compile(r"^\\text\s*\{[^{}]{0,80}(?:is|are|be|:|=)\s*:?\s*\}\s*")
_WHOLE_TEXT = re.compile(r"\\text\s*\{([^{}]*[0-9][^{}]*)\}")
_DEGREE = re.compile(r"\^\s*(?:\{\s*\\circ\s*\}|\\circ(?![A-Za-z]))|\\degree(?![A-Za-z])|\\textdegree(?![A-Za-z])")
_SYNONYMS = (
    (re.compile(r"\\(?:leq|leqslant)(?![A-Za-z])"), r"\\le "),
    (re.compile(r"\\(?:geq|geqslant)(?![A-Za-z])"), r"\\ge "),
    (re.compile(r"\\lt(?![A-Za-z])"), "<"),
    (re.compile(r"\\gt(?![A-Za-z])"), ">"),
    (re.compile(r"\\neq(?![A-Za-z])"), r"\\ne "),
    (re.compile(r"<="), r"\\le "),
    (re.compile(r">="), r"\\ge "),
    (re.compile(r"\\(?:textbf|textit|textrm|mbox|mathrm|texttt|textsf)(?![A-Za-z])"), r"\\text"),
    (re.compile(r"\\(?:varnothing|O)(?![A-Za-z])"), r"\\emptyset"),
    (re.compile(r"\\backslash(?![A-Za-z])"), r"\\setminus"),
    (re.compile(r"\\lbrace(?![A-Za-z])"), r"\\{"),
    (re.compile(r"\\rbrace(?![A-Za-z])"), r"\\}"),
    (re.compile(r"\\lbrack(?![A-Za-z])"), "["),
    (re.compile(r"\\rbrack(?![A-Za-z])"), "]"),
    (re.compile(r"\\(?:lvert|rvert|vert)(?![A-Za-z])"), "|"),
    (re.compile(r"\\(?:ast)(?![A-Za-z])"), "*"),
    (re.compile(r"\*\*"), "^"),
)
_TEXT_NUMBER = re.compile(r"\\text\s*\{\s*([-+]?[0-9][-+0-9.,/ ]*)\}")
_TEXT_SIGN = re.compile(r"\\text\s*\{\s*(\\(?:dollar|euro|pound)|\\?%)\s*\}")
_NO_COMMANDS = re.compile(r"[^\\*={~]*")
_TRAILING = re.compile(r"(?:\\\\|[.,;:\s])+$")
_LEADING = re.compile(
    r"^(?:\s|=(?!=)|\\approx(?![A-Za-z])|\\therefore(?![A-Za-z])|(?:the )?(?:final )?answer(?: is|:)\s*:?)+",
    re.IGNORECASE,
)
_SPACES = re.compile(r"\s+")


def normal_spelling(text: str) -> str:
    """The text in one spelling. Spaces that may part numbers or words stay, one in a row."""
    if not text.isascii():
        text = _ascii_spelling(text)
    text = _strip_delimiters(text)
    if not _NO_COMMANDS.fullmatch(text):
        text = _commands_spelled(text)
    text = _SPACES.sub(" ", text)
    text = _LEADING.sub("", _INTRODUCTION.sub("", _strip_end(text))).strip()
    whole = _WHOLE_TEXT.fullmatch(text)
    return whole.group(1).strip() if whole else text


def _strip_delimiters(text: str) -> str:
    text = text.strip()
    if text.startswith("**") and text.endswith("**") and len(text) > 4:
        text = text[2:-2]
    if "$" in text:
        text = text.replace("\\$", "\\dollar ").replace("$", " ")
    return text.strip().strip("`")


def _commands_spelled(text: str) -> str:
    text = _THOUSANDS_MARK.sub("", text)
    text = _SIZES.sub(" ", text)
    text = _ROW_SPACE.sub(r"\\\\ ", text)
    text = _OPERATOR_NAME.sub(r"\\\1 ", text)
    text = _DELIMITERS.sub(" ", text)
    text = _SPACING.sub(" ", text)
    text = _FRACTIONS.sub(r"\\frac", text)
    text = _COLORS.sub("", _FONTS.sub("", text))
    if r"\choose" in text:
        text = _CHOOSE.sub(r"\\binom{\1}{\2}", text)
    text = _DEGREE.sub(r"\\degree ", text)
    for pattern, replacement in _SYNONYMS:
        text = pattern.sub(replacement, text)
    return _TEXT_SIGN.sub(r"\1 ", _TEXT_NUMBER.sub(r"\1", text)) if r"\text" in text else text


def _strip_end(text: str) -> str:
    return _TRAILING.sub("", text[-60:]) if len(text) <= 60 else text[:-60] + _TRAILING.sub("", text[-60:])


def _ascii_spelling(text: str) -> str:
    text = _THIN_SPACES.sub("", text)
    text = _SUPERSCRIPT_RUN.sub(lambda run: "^{" + "".join(_SUPERSCRIPTS[c] for c in run.group()) + "}", text)
    text = _SUBSCRIPT_RUN.sub(lambda run: "_{" + "".join(_SUBSCRIPTS[c] for c in run.group()) + "}", text)
    # A fraction after a digit is a mixed number, which a space sets apart.
    text = "".join(_UNICODE.get(character, character) for character in text)
    return unicodedata.normalize("NFKC", text)
