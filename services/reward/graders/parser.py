r"""Reads an expression: LaTeX as models write it, and plain text such as sqrt(2)/2. Bounded in depth and length."""

import re
from fractions import Fraction

from services.reward.graders.expression import Node, Number, Operation, Symbol, TooComplexError, UnreadableError
from services.reward.graders.lexer import END, FUNCTIONS, Token, tokens_of

_MAX_DEPTH = 40
_MAX_CHARACTERS = 1000
_MAX_NUMBER_CHARACTERS = 400
_MULTIPLICATIONS = frozenset(("cdot", "times"))
_GREEK = frozenset((
    "alpha", "beta", "gamma", "delta", "epsilon", "varepsilon", "zeta", "eta", "theta",
    "vartheta", "iota", "kappa", "lambda", "mu", "nu", "xi", "rho", "sigma",
    "tau", "upsilon", "phi", "varphi", "chi", "psi", "omega", "Gamma", "Delta",
    "Theta", "Lambda", "Xi", "Pi", "Sigma", "Upsilon", "Phi", "Psi", "Omega",
    "ell", "hbar",
))  # fmt: skip
_INVERSES = {
    "sin": "arcsin", "cos": "arccos", "tan": "arctan", "asin": "arcsin", "acos": "arccos", "atan": "arctan",
}  # fmt: skip
_NO_FACTORS = frozenset(("pm", "mp", "}", "|", "rfloor", "rceil", "rangle"))
_CLOSING = {"(": ")", "[": "]", "{": "}"}
_INTEGER = re.compile(r"[0-9]+")


def expression_of(text: str) -> Node:
    """The expression that a text in normal spelling is.

    Raises:
        UnreadableError: it is none.
        TooComplexError: it is too long or too deep.
    """
    if len(text) > _MAX_CHARACTERS:
        raise TooComplexError(f"{len(text)} characters; at most {_MAX_CHARACTERS} are read")
    parser = _Parser(tokens_of(text))
    node = parser.sum()
    parser.require_end()
    return node


class _Parser:
    """Recursive descent; a product by juxtaposition binds like any other product, from left to right."""

    def __init__(self, tokens: list[Token]) -> None:
        self._tokens = tokens
        self._index = 0
        self._depth = 0
        self._num_open_bars = 0

    def sum(self) -> Node:
        """A sum of products."""
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise TooComplexError(f"more than {_MAX_DEPTH} levels")
        node = self._signed_product()
        while operator := self._take_operator():
            node = Operation(operator, (node, self._signed_product()))
        self._depth -= 1
        return node

    def require_end(self) -> None:
        """Nothing may follow."""
        if self._peek() is not END:
            raise UnreadableError(f"{self._peek().text!r} is left over")

    def _take_operator(self) -> str | None:
        token = self._peek()
        if token.kind == "sign" and token.text in "+-":
            self._index += 1
            return token.text
        if token.kind == "command" and token.text in ("pm", "mp"):
            self._index += 1
            return "±" if token.text == "pm" else "∓"
        return None

    def _signed_product(self) -> Node:
        operator = self._take_operator()
        if operator is None:
            return self._product()
        node = self._product()
        if operator == "+":
            return node
        return Operation("neg" if operator == "-" else operator, (node,))

    def _product(self) -> Node:
        node = self._factor()
        while True:
            token = self._peek()
            if (token.kind == "sign" and token.text == "*") or (
                token.kind == "command" and token.text in _MULTIPLICATIONS
            ):
                self._index += 1
                node = Operation("*", (node, self._signed_factor()))
            elif (token.kind == "sign" and token.text in "/:") or (token.kind == "command" and token.text == "div"):
                self._index += 1
                node = Operation("/", (node, self._signed_factor()))
            elif self._starts_factor(token):
                node = Operation("*", (node, self._factor()))
            else:
                return node

    def _signed_factor(self) -> Node:
        token = self._peek()
        if token.kind == "sign" and token.text in "+-":
            self._index += 1
            factor = self._factor()
            return Operation("neg", (factor,)) if token.text == "-" else factor
        return self._factor()

    def _starts_factor(self, token: Token) -> bool:
        if token.kind == "number":
            # "3 4" is no product, "x 4" hardly one; "3!2!" is.
            if self._tokens[self._index - 1].text not in ("!", ")", "}"):
                raise UnreadableError("a number follows without an operator")
            return True
        if token.kind == "sign":
            return token.text in "([{" or (token.text == "|" and self._num_open_bars == 0)
        return token.kind == "name" or (token.kind == "command" and token.text not in _NO_FACTORS)

    def _factor(self) -> Node:
        node = self._primary()
        while True:
            token = self._peek()
            if token.text == "^" and token.kind == "sign":
                self._index += 1
                node = Operation("^", (node, self._exponent()))
            elif token.kind == "sign" and token.text == "!":
                self._index += 1
                node = Operation("!", (node,))
            elif token.text == "%":
                self._index += 1
                node = Operation("/", (node, Number(Fraction(100))))
            elif token.text == "degree":
                self._index += 1
                node = Operation("*", (node, Operation("/", (Symbol("pi"), Number(Fraction(180))))))
            else:
                return node

    def _exponent(self) -> Node:
        token = self._peek()
        if token.kind == "sign" and token.text in "+-":
            self._index += 1
            node = self._exponent()
            return Operation("neg", (node,)) if token.text == "-" else node
        if token.kind == "number":
            # 2^10 is written for 2^{10}.
            self._index += 1
            return _number(token.text)
        node = self._argument()
        if self._peek().text == "^" and token.text != "{":
            self._index += 1
            return Operation("^", (node, self._exponent()))
        return node

    def _primary(self) -> Node:
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise TooComplexError(f"more than {_MAX_DEPTH} levels")
        token = self._next()
        if token.kind == "number":
            node = self._number_or_mixed(token)
        elif token.kind == "name":
            node = self._symbol(token.text)
        elif token.kind == "command":
            node = self._command(token.text)
        elif token.text in _CLOSING:
            node = self._until(_CLOSING[token.text])
        elif token.text == "|":
            self._num_open_bars += 1
            node = Operation("abs", (self._until("|"),))
            self._num_open_bars -= 1
        else:
            raise UnreadableError(f"{token.text!r} where a number or symbol is wanted")
        self._depth -= 1
        return node

    def _number_or_mixed(self, token: Token) -> Node:
        r"""7 3/4 and 7\frac{3}{4} are sums, as long as the fraction is a proper one."""
        whole = _number(token.text)
        if self._peek().text == "_":
            self._index += 1
            return Symbol(f"{token.text} base {self._subscript()}")
        fraction = self._proper_fraction() if _INTEGER.fullmatch(token.text) else None
        return whole if fraction is None else Number(whole.value + fraction)

    def _proper_fraction(self) -> Fraction | None:
        start = self._index
        token = self._next()
        parts: list[int] = []
        if token.kind == "command" and token.text == "frac":
            for _ in range(2):
                try:
                    part = self._argument()
                except UnreadableError:
                    break
                if isinstance(part, Number) and part.value.denominator == 1:
                    parts.append(part.value.numerator)
        elif token.kind == "number" and token.is_spaced:
            parts = self._slashed(token)
        if len(parts) == 2 and 0 < parts[0] < parts[1]:
            return Fraction(parts[0], parts[1])
        self._index = start
        return None

    def _slashed(self, top: Token) -> list[int]:
        bottom = self._tokens[self._index + 1] if self._index + 1 < len(self._tokens) else END
        if self._peek().text != "/" or not (_INTEGER.fullmatch(top.text) and _INTEGER.fullmatch(bottom.text)):
            return []
        self._index += 2
        return [int(_number(top.text).value), int(_number(bottom.text).value)]

    def _command(self, name: str) -> Node:
        if name == "frac":
            return Operation("/", (self._argument(), self._argument()))
        if name == "sqrt":
            return self._root()
        if name in ("binom", "dbinom", "tbinom"):
            return Operation("binom", (self._argument(), self._argument()))
        if name in ("infty", "infinity", "inf"):
            return Symbol("infinity")
        if name == "pi" or name in _GREEK or name == "imath":
            return self._symbol("i" if name == "imath" else name)
        if name in ("overline", "bar", "vec", "hat"):
            return Symbol(f"{name} {self._argument()}")
        if name in ("lfloor", "lceil"):
            inner = self._until_command(f"r{name[1:]}")
            return Operation("floor" if name == "lfloor" else "ceil", (inner,))
        if name in ("floor", "ceil"):
            return Operation(name, (self._argument(),))
        if name == "{":
            return self._until_command("}")
        if name in FUNCTIONS:
            return self._function(name)
        if name == "dollar":
            return self._factor()
        raise UnreadableError(f"\\{name} is not known")

    def _root(self) -> Node:
        index: Node = Number(Fraction(2))
        if self._peek().text == "[":
            self._index += 1
            index = self._until("]")
        return Operation("root", (self._argument(), index))

    def _function(self, name: str) -> Node:
        base: Node | None = None
        exponent: Node | None = None
        for _ in range(2):
            if self._peek().text == "_" and name == "log":
                self._index += 1
                base = self._argument()
            elif self._peek().text == "^":
                self._index += 1
                exponent = self._exponent()
        if exponent == Operation("neg", (Number(Fraction(1)),)) and name in _INVERSES:
            return Operation(_INVERSES[name], (self._function_argument(),))
        argument = self._function_argument()
        node: Node
        if name == "log" and base is not None:
            node = Operation("log", (argument, base))
        elif name == "lg":
            node = Operation("log", (argument, Number(Fraction(10))))
        else:
            node = Operation(
                {"log": "ln", **_INVERSES}.get(name, name) if name not in ("sin", "cos", "tan") else name, (argument,)
            )
        return node if exponent is None else Operation("^", (node, exponent))

    def _function_argument(self) -> Node:
        r"""What \sin takes: a group alone, otherwise all factors up to a sign or the next function."""
        if self._peek().text in ("(", "{", "[") and self._peek().kind == "sign":
            return self._primary()
        node = self._signed_factor()
        while self._starts_factor(self._peek()) and self._peek().text not in FUNCTIONS - {"sqrt"}:
            node = Operation("*", (node, self._factor()))
        return node

    def _symbol(self, name: str) -> Node:
        if self._peek().text == "_":
            self._index += 1
            name = f"{name}_{self._subscript()}"
        while self._peek().text == "'":
            self._index += 1
            name += "'"
        return Symbol(name)

    def _subscript(self) -> str:
        token = self._next()
        if token.text != "{":
            return token.text
        parts = []
        while (token := self._next()).text != "}":
            if token is END:
                raise UnreadableError("a subscript does not end")
            parts.append(token.text)
        return "".join(parts)

    def _argument(self) -> Node:
        r"""What a command takes: a group, or one digit, letter or command."""
        token = self._peek()
        if token.kind == "number" and len(token.text) > 1 and token.text[0].isdigit():
            self._tokens[self._index] = Token("number", token.text[1:], False)
            return _number(token.text[0])
        if token.kind == "number":
            self._index += 1
            return _number(token.text)
        return self._primary()

    def _until(self, closing: str) -> Node:
        num_open_bars, self._num_open_bars = self._num_open_bars, int(closing == "|")
        node = self.sum()
        self._num_open_bars = num_open_bars
        if self._next().text != closing:
            raise UnreadableError(f"{closing!r} is missing")
        return node

    def _until_command(self, closing: str) -> Node:
        node = self.sum()
        if self._next().text != closing:
            raise UnreadableError(f"\\{closing} is missing")
        return node

    def _peek(self) -> Token:
        return self._tokens[self._index] if self._index < len(self._tokens) else END

    def _next(self) -> Token:
        token = self._peek()
        self._index += 1
        return token


def _number(text: str) -> Number:
    if len(text) > _MAX_NUMBER_CHARACTERS:
        raise TooComplexError(f"a number of {len(text)} characters")
    try:
        return Number(Fraction(text.replace(",", "")))
    except ValueError as error:
        raise UnreadableError(f"{text[:40]!r} is no number") from error
