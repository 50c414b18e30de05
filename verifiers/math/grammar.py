r"""Read one answer, LaTeX or plain, into a tree. No arithmetic happens here, nothing is evaluated.

Whatever does not follow the grammar as a whole becomes a `text` node: no part of an answer is ever
picked out of it. Length, depth and digits are bounded before and while reading.
"""

from __future__ import annotations

import re
from fractions import Fraction

from .factors import MAX_DEPTH, Factors, in_base
from .notation import (
    NUMBER_WORDS,
    QUALIFIER,
    NotMaths,
    TooBig,
    chinese_number,
    clean,
    plain,
    tokens,
    unit_name,
)  # fmt: skip
from .tree import Node, is_name, with_unit

_RELATIONS = {"=", "<", ">", "<=", ">=", "!=", "≈", r"\equiv", r"\in", r"\notin"}
_DIGITS = ("number", "science", "repeat")
_JOINS = (",", ";", r"\\", r"\vee", r"\wedge")


# Words that make "16 ..." something else than 16 of a kind.
_REMARK = re.compile(
    r"\b(?:not|or|is|are|was|wrong|incorrect|maybe|perhaps|unless|if)\b", re.IGNORECASE
)


class _Reader(Factors):
    """Lists, labels, units, relations, sums and products, over the factors."""

    # statement: items between commas, semicolons, "and", "or"
    def statement(self, *closers: str) -> Node:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise TooBig("brackets nested deeper than an answer has")
        items = [self.item()]
        joins: set[str] = set()
        while not self.at_end(closers):
            join = ""
            while self.peek().kind == "sep" or self.peek().text in _JOINS:
                token = self.take()
                join = token.text if token.kind == "sep" or not join else join
            if not join:
                raise NotMaths(self.peek().text)
            if self.at_end(closers):
                break
            joins.add({r"\vee": "or", r"\wedge": "and"}.get(join, join))
            items.append(self.item())
        self.depth -= 1
        if len(items) > 1:  # "x = k pi, k in Z": the last item only says what k is
            items = [i for i in items if not _is_domain(i)] or items
        if len(items) == 1:
            return items[0]
        regions = [_is_region(i) for i in items]
        points = [i.op == "label" for i in items]
        if ("and" in joins and all(regions)) or (
            "or" in joins
            and any(regions)
            and all(r or p for r, p in zip(regions, points, strict=True))
        ):
            return Node("union" if "or" in joins else "inter", tuple(items))
        return Node("list", tuple(items))

    def at_end(self, closers: tuple[str, ...]) -> bool:
        token = self.peek()
        return token.kind == "end" or (token.kind in ("op", "cmd") and token.text in closers)

    def item(self) -> Node:
        self.skip("=", "≈")  # "= 5" goes on from what stood before the box
        label = self.label()
        node = self.relation()
        node = self.trailing(node)
        return Node("label", (node,), label) if label else node

    def label(self) -> str:
        """`Minimum:`, `Maximum =`, `f(x) =` and the like before the value, or ''."""
        start, words = self.at, []
        while self.peek().kind == "text":
            words.append(self.take().text)
        if words and self.skip(":", "="):
            return plain(" ".join(words))
        self.at = start
        name = self.peek()
        if name.kind != "name":
            return ""
        self.at += 1
        shown = name.text + self.subscript() + "'" * self.primes()
        if self.skip("("):
            inner = []
            while self.peek().kind in ("name", "number") or self.peek().text == ",":
                inner.append(self.take().text)
            if inner and self.skip(")") and self.skip("="):
                return f"{shown}({''.join(inner)})"
        self.at = start
        return ""

    def trailing(self, node: Node) -> Node:
        """Units and remarks after a value."""
        words = ""
        while self.peek().kind == "text":
            token = self.peek()
            if QUALIFIER.match(token.text.lower()):
                while self.peek().kind not in ("sep", "end") and self.peek().text not in (
                    ",",
                    ";",
                    ")",
                ):
                    self.at += 1
                break
            self.at += 1
            words += " " + token.text
            if self.skip("^"):
                words += "^" + "".join(self.group_text())
            elif self.peek().text == "/" and self.peek(1).kind == "text":
                self.at += 1
                words += "/"
        if not words:
            return node
        if node.op in ("list", "rel", "union", "inter") or _REMARK.search(words):
            raise NotMaths(words)
        return with_unit(node, unit_name(words))

    def relation(self) -> Node:
        start = self.at
        sides, ops = [self.regions()], []
        while self.peek().kind in ("op", "cmd") and self.peek().text in _RELATIONS:
            ops.append(self.take().text)
            sides.append(self.regions())
        if not ops:
            return sides[0]
        if "≈" in ops:  # the exact side counts, unless it is only a name
            cut = ops.index("≈")
            if cut or not is_name(sides[0]):
                sides, ops = sides[: cut + 1], ops[:cut]
                if not ops:
                    return sides[0]
            ops = ["=" if o == "≈" else o for o in ops]
        if set(ops) == {r"\in"} and len(ops) == 1 and is_name(sides[0]):
            return Node("label", (sides[1],), self.shown(start, r"\in"))
        if set(ops) == {"="} and is_name(sides[0]):
            return Node("label", (sides[-1],), self.shown(start, "="))
        return Node("rel", tuple(sides), tuple(ops))

    def shown(self, start: int, until: str) -> str:
        end = next(i for i in range(start, len(self.tokens)) if self.tokens[i].text in (until, "≈"))
        return "".join(t.text for t in self.tokens[start:end] if t.text not in "{}")

    def regions(self) -> Node:
        node = self.ratio()
        while self.peek().text in (r"\cup", r"\cap", r"\setminus"):
            op = {r"\cup": "union", r"\cap": "inter", r"\setminus": "diff"}[self.take().text]
            other = self.ratio()
            flat = node.args if node.op == op and op != "diff" else (node,)
            node = Node(op, (*flat, other))
        return node

    def ratio(self) -> Node:
        parts = [self.sum()]
        while self.peek().text == ":" and self.peek().kind == "op":
            self.at += 1
            parts.append(self.sum())
        return parts[0] if len(parts) == 1 else Node("ratio", tuple(parts))

    def sum(self) -> Node:
        self.depth += 1
        if self.depth > MAX_DEPTH * 3:
            raise TooBig("brackets nested deeper than an answer has")
        node: Node | None = None
        while True:
            sign = self.peek().text
            if sign in ("+", "-", r"\pm", r"\mp") and self.peek().kind != "text":
                self.at += 1
            elif node is None:
                sign = "+"
            else:
                break
            term = self.term()
            if sign in (r"\pm", r"\mp"):
                node = Node("pm", (node, term) if node is not None else (term,))
            else:
                term = Node("neg", (term,)) if sign == "-" else term
                node = term if node is None else Node("add", (node, term))
        self.depth -= 1
        return node

    def term(self) -> Node:
        if self.peek().kind == "money":
            unit = unit_name(self.take().text)
            return with_unit(self.term(), unit)
        node = last = self.signed()
        while True:
            token = self.peek()
            if token.kind == "op" and token.text in ("*", "/"):
                self.at += 1
                last = self.signed()
                node = Node("mul" if token.text == "*" else "div", (node, last))
            elif self.starts_factor():
                if last.op in ("num", "dec") and token.kind in _DIGITS:
                    raise NotMaths("two numbers side by side")
                last = self.power()
                node = Node("mul", (node, last))
            else:
                return node


def _is_region(node: Node) -> bool:
    if node.op == "rel":
        return isinstance(node.value, tuple) and not set(node.value) & {"=", r"\equiv"}
    return node.op in ("union", "inter", "setof", "diff")


def _is_domain(node: Node) -> bool:
    return (
        node.op == "label"
        and node.args[0].op == "var"
        and str(node.args[0].value).startswith("mathbb")
    )


_CLOCK = re.compile(r"(\d\d?)(?::(\d\d))? ?([ap])\.? ?m\.?")
_BASE = re.compile(
    r"([0-9A-Za-z]*[0-9][0-9A-Za-z]*)\s*(?:_\s*\{?\s*(\d\d?)\s*\}?|\s+(?:in )?base\s*(\d\d?))"
)


_NAMED = {
    "all real numbers": Node("reals"),
    "all reals": Node("reals"),
    "real numbers": Node("reals"),
    "empty set": Node("set", ()),
}


def read(text: str) -> Node:
    """The tree of an answer; a `text` node when it is not mathematics as a whole.

    Raises TooBig when it is longer, deeper or has more digits than an answer has.
    """
    cleaned = clean(text)
    if cleaned.count("{") + cleaned.count("(") + cleaned.count("[") > 8 * MAX_DEPTH:
        raise TooBig("more brackets than an answer has")
    lower = plain(cleaned)
    if lower in NUMBER_WORDS:
        return Node("num", (), Fraction(NUMBER_WORDS[lower]))
    if lower in _NAMED:
        return _NAMED[lower]
    if (value := chinese_number(lower)) is not None:
        return Node("num", (), Fraction(value))
    if match := _CLOCK.fullmatch(lower):
        return Node("text", (), f"{int(match[1])}:{match[2] or '00'} {match[3]}m")
    try:
        if match := _BASE.fullmatch(cleaned):
            return in_base(match[1], match[2] or match[3])
        if r"\ldots" in cleaned or "..." in cleaned:
            raise NotMaths("an unfinished list")
        reader = _Reader(tokens(cleaned))
        node = reader.statement()
        if reader.peek().kind != "end":
            raise NotMaths(reader.peek().text)
    except NotMaths:
        return Node("text", (), lower)
    return node
