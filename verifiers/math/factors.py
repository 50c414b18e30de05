"""The inner half of the grammar: powers and what stands under them.

Numbers, names, brackets, fractions, roots, functions, sets and matrices. `Factors` reads them from
tokens; what stands between commas, relations and sums is read by the class built on it.
"""

from __future__ import annotations

import re
from fractions import Fraction

from .notation import FUNCTIONS, GREEK, NUMBER_WORDS, NotMaths, Token, TooBig
from .tree import Node, is_name

MAX_DEPTH = 40

_OPEN = {"(": ")", "[": "]"}
_DIGITS = ("number", "science", "repeat")
_WORDY = {"text", "money"}
_STARTS = {
    "frac", "binom", "sqrt", "pi", "infty", "lfloor", "lceil", "overline", "bar", "imath", "begin",
}  # fmt: skip
_MATRICES = {"pmatrix", "bmatrix", "matrix", "array", "Bmatrix", "smallmatrix"}


class Factors:
    """Recursive descent over tokens. Every method leaves `at` behind what it read."""

    def __init__(self, found: list[Token]) -> None:
        self.tokens, self.at, self.depth, self.bars = found, 0, 0, 0

    def peek(self, ahead: int = 0) -> Token:
        index = self.at + ahead
        return self.tokens[index] if index < len(self.tokens) else Token("end", "")

    def take(self, text: str | None = None) -> Token:
        token = self.peek()
        if token.kind == "end" or (text is not None and token.text != text):
            raise NotMaths(f"{token.text!r} where {text!r} was expected")
        self.at += 1
        return token

    def skip(self, *texts: str) -> bool:
        if self.peek().text in texts and self.peek().kind not in _WORDY:
            self.at += 1
            return True
        return False

    def statement(self, *closers: str) -> Node:
        """Everything up to a closing token; see the subclass."""
        raise NotImplementedError

    def relation(self) -> Node:
        """One side or a chain of sides; see the subclass."""
        raise NotImplementedError

    def group_text(self) -> list[str]:
        if not self.skip("{"):
            return [self.take().text]
        parts = []
        while not self.skip("}"):
            parts.append(self.take().text)
        return parts

    def starts_factor(self) -> bool:
        token = self.peek()
        if token.kind in _DIGITS or token.kind == "name":
            return True
        if token.kind == "op":
            return token.text in ("(", "{") or (token.text == "|" and not self.bars)
        name = token.text[1:]
        return token.kind == "cmd" and (name in FUNCTIONS or name in GREEK or name in _STARTS)

    def signed(self) -> Node:
        sign = 1
        while self.peek().kind == "op" and self.peek().text in ("+", "-"):
            sign = -sign if self.take().text == "-" else sign
        node = self.power()
        return node if sign > 0 else Node("neg", (node,))

    def power(self) -> Node:
        node = self.mixed()
        while True:
            token = self.peek()
            if token.kind not in ("op", "cmd"):
                break
            if token.text == "^":
                self.at += 1
                if self.skip(r"\circ") or (
                    [self.peek(i).text for i in range(3)] == ["{", r"\circ", "}"] and self.jump(3)
                ):
                    node = Node("deg", (node,))
                else:
                    node = Node("pow", (node, self.exponent()))
            elif token.text == "!":
                self.at += 1
                node = Node("fact", (node,))
            elif token.text == "%":
                self.at += 1
                node = Node("pct", (node,))
            else:
                break
        return node

    def jump(self, count: int) -> bool:
        self.at += count
        return True

    def exponent(self) -> Node:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise TooBig("a tower of exponents")
        sign = self.peek().text if self.peek().text in ("+", "-") else ""
        self.at += bool(sign)
        node = self.mixed()
        if self.skip("^"):
            node = Node("pow", (node, self.exponent()))
        self.depth -= 1
        return Node("neg", (node,)) if sign == "-" else node

    def mixed(self) -> Node:
        """A primary, or the mixed number `1\\frac{1}{2}`, `1 1/2`."""
        whole = self.primary()
        if whole.op != "num" or self.tokens[self.at - 1].kind != "number":
            return whole
        start = self.at
        part: Node | None = None
        if self.peek().text == r"\frac":
            part = self.primary()
        elif (
            self.peek().kind == "number" and self.peek().space and self.peek(1).text == "/"
            and self.peek(2).kind == "number"
        ):  # fmt: skip
            top = self.primary()
            self.take("/")
            part = Node("div", (top, self.primary()))
        if part is not None and part.op == "div" and all(a.op == "num" for a in part.args):
            top, bottom = (a.value for a in part.args)
            if isinstance(top, Fraction) and isinstance(bottom, Fraction) and 0 < top < bottom:
                return Node("add", (whole, part))
        self.at = start
        return whole

    def primary(self) -> Node:
        token = self.take()
        if token.kind in ("number", "repeat", "science"):
            return self.number(token)
        if token.kind == "name":
            name = token.text + self.subscript()
            name += "'" * self.primes()
            if name in ("f", "g") and self.peek().text == "(":
                return self.call(name)
            return Node("const", (), name) if name in ("e", "i") else Node("var", (), name)
        if token.text in _OPEN and token.kind == "op":
            bars, self.bars = self.bars, 0
            inner = self.statement(")", "]")
            self.bars = bars
            close = self.take().text
            if inner.op == "list":
                return Node("tuple", inner.args, token.text + close)
            if close != _OPEN[token.text]:
                raise NotMaths("brackets that do not match")
            if token.text + close == "()" and self.peek().text == "_" and inner.op == "num":
                return in_base(str(inner.value), self.subscript(raw=True))
            return inner
        if token.text == "{" and token.kind == "op":
            inner = self.statement("}")
            self.take("}")
            return inner
        if token.text == "|" and token.kind == "op":
            self.bars += 1
            inner = self.statement("|")
            self.bars -= 1
            self.take("|")
            return Node("func", (inner,), "abs")
        if token.kind == "cmd":
            return self.command(token.text)
        raise NotMaths(token.text)

    def primes(self) -> int:
        count = 0
        while self.skip("'"):
            count += 1
        return count

    def subscript(self, raw: bool = False) -> str:
        if not self.skip("_"):
            return ""
        inner = "".join(t for t in self.group_text() if t not in "{}")
        return inner if raw else "_" + inner

    def number(self, token: Token) -> Node:
        body = token.text
        if token.kind == "repeat":
            return Node("num", (), _repeating(body))
        if token.kind == "science":
            mantissa, exponent = re.split("[eE]", body)
            return Node("num", (), Fraction(mantissa) * Fraction(10) ** int(exponent))
        if self.peek().text == "_" and self.peek().kind == "op":
            return in_base(body, self.subscript(raw=True))
        if "." not in body:
            return Node("num", (), Fraction(int(body)))
        whole, _, places = body.partition(".")
        if not places:
            return Node("num", (), Fraction(int(whole)))
        digits = len((whole + places).lstrip("0"))
        return Node(
            "dec",
            (),
            (Fraction(int((whole or "0") + places), 10 ** len(places)), digits, len(places)),
        )

    def argument(self) -> Node:
        """An argument of \\frac and the like: a group, a command, or one single character."""
        token = self.peek()
        if token.kind == "number" and len(token.text) > 1 and token.text.isdigit():
            self.tokens[self.at] = Token("number", token.text[1:])
            return Node("num", (), Fraction(int(token.text[0])))
        return self.primary()

    def command(self, name: str) -> Node:
        if name == r"\frac":
            return Node("div", (self.argument(), self.argument()))
        if name == r"\binom":
            return Node("func", (self.argument(), self.argument()), "binom")
        if name == r"\sqrt":
            index = Node("num", (), Fraction(2))
            if self.skip("["):
                index = self.statement("]")
                self.take("]")
            return Node("func", (self.primary(), index), "root")
        if name in (r"\lfloor", r"\lceil"):
            inner = self.statement(r"\rfloor", r"\rceil")
            self.take()
            return Node("func", (inner,), "floor" if name == r"\lfloor" else "ceil")
        if name == r"\{":
            return self.braces()
        if name in (r"\pi", r"\infty", r"\imath"):
            return Node("const", (), {"pi": "pi", "infty": "inf", "imath": "i"}[name[1:]])
        if name == r"\emptyset":
            return Node("set", ())
        if name == r"\mathbb":
            inner = "".join(self.group_text())
            return Node("reals") if inner == "R" else Node("var", (), f"mathbb {inner}")
        if name in (r"\overline", r"\bar"):
            inner_node = self.argument()
            segment = inner_node.op == "mul" and is_name(inner_node)
            return inner_node if segment else Node("func", (inner_node,), "bar")
        if name == r"\begin":
            return self.environment()
        if name[1:] in GREEK:
            shown = name[1:].removeprefix("var") + self.subscript() + "'" * self.primes()
            return Node("var", (), shown)
        if name[1:] in FUNCTIONS:
            return self.function(name[1:])
        raise NotMaths(name)

    def function(self, name: str) -> Node:
        base = Node("num", (), Fraction(10))
        power: Node | None = None
        while self.peek().text in ("_", "^"):
            if self.skip("^"):
                power = self.exponent()
            else:
                self.take("_")
                base = self.argument()
        if name == "sqrt" and self.peek().text in ("(", "{"):
            return Node("func", (self.primary(), Node("num", (), Fraction(2))), "root")
        if self.peek().text in ("(", "["):
            inner = self.primary()
        else:
            inner = self.power()
            while self.starts_factor() and self.peek().text[1:] not in FUNCTIONS:
                inner = Node("mul", (inner, self.power()))
        args = inner.args if inner.op in ("tuple", "list") else (inner,)
        if name == "log":
            args = (*args, base)
        if name == "exp":
            node = Node("pow", (Node("const", (), "e"), inner))
        elif name == "cbrt":
            node = Node("func", (inner, Node("num", (), Fraction(3))), "root")
        else:
            inverse = power is not None and power == Node("neg", (Node("num", (), Fraction(1)),))
            if inverse and name in ("sin", "cos", "tan", "cot"):
                return Node("func", args, "arc" + name)
            node = Node("func", args, name)
        return Node("pow", (node, power)) if power is not None else node

    def call(self, name: str) -> Node:
        inner = self.primary()
        return Node("func", inner.args if inner.op == "tuple" else (inner,), f"{name}()")

    def braces(self) -> Node:
        """{1, 2}, {x | x < 3}, {x in R : x < 3}."""
        if self.skip(r"\}"):
            return Node("set", ())
        start = self.at
        if self.peek().kind == "name":
            self.at += 1
            self.subscript()
            if self.skip(r"\in") and self.skip(r"\mathbb"):
                self.group_text()
            if self.skip("|", ":"):
                condition = self.statement(r"\}")
                self.take(r"\}")
                return Node("setof", (condition,))
        self.at = start
        bars, self.bars = self.bars, 1  # a bar inside is "such that"
        first = self.relation()
        self.bars = bars
        if self.skip("|"):
            condition = self.statement(r"\}")
            self.take(r"\}")
            return (
                Node("setof", (condition,)) if is_name(first) else Node("setof", (first, condition))
            )
        self.at = start
        inner = self.statement(r"\}")
        self.take(r"\}")
        return Node("set", inner.args if inner.op == "list" else (inner,))

    def environment(self) -> Node:
        kind = "".join(self.group_text())
        if kind == "array" and self.peek().text == "{":
            self.group_text()
        if kind not in _MATRICES and kind != "cases":
            raise NotMaths(kind)
        rows: list[Node] = []
        while self.peek().text != r"\end":
            cells = [self.cell()]
            while self.skip("&"):
                cells.append(self.cell())
            rows.append(Node("tuple", tuple(cells), "()"))
            if not self.skip(r"\\"):
                break
        self.take(r"\end")
        self.group_text()
        if kind == "cases":
            if any(len(r.args) > 1 for r in rows):
                raise NotMaths("cases with conditions")
            return Node("list", tuple(r.args[0] for r in rows))
        return Node("matrix", tuple(rows))

    def cell(self) -> Node:
        node = self.relation()
        self.skip(",")
        return node


_REPEAT = re.compile(
    r"(\d*)\.(\d*)(?:\\(?:overline|bar)\s*\{?(\d+)\}?|\((\d+)\)"
    r"|\\dot\s*\{?(\d)\}?(?:(\d*)\\dot\s*\{?(\d)\}?)?)"
)


def _repeating(body: str) -> Fraction:
    match = _REPEAT.fullmatch(body)
    if match is None:
        raise NotMaths(body)
    whole, start, bar, bracket, first, middle, last = (g or "" for g in match.groups())
    period = bar or bracket or first + middle + last
    head = Fraction(int((whole or "0") + start), 10 ** len(start))
    return head + Fraction(int(period), (10 ** len(period) - 1) * 10 ** len(start))


def in_base(digits: str, base: str) -> Node:
    number = NUMBER_WORDS.get(base.strip().lower(), base)
    if not str(number).isdigit() or not 2 <= int(number) <= 36:
        raise NotMaths(f"base {base}")
    try:
        return Node("num", (), Fraction(int(digits, int(number))))
    except ValueError:
        raise NotMaths(f"{digits} in base {base}") from None
