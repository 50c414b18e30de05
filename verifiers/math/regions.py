"""Intervals, inequalities and sets of points as parts of the real line."""

from __future__ import annotations

from fractions import Fraction
from typing import NamedTuple

from . import values
from .notation import TooBig
from .tree import Node, is_name

MAX_MEMBERS = 64
FLIP = {"<": ">", ">": "<", "<=": ">=", ">=": "<="}
_COLLECTIONS = {
    "tuple",
    "list",
    "set",
    "setof",
    "union",
    "inter",
    "diff",
    "rel",
    "label",
    "matrix",
    "reals",
    "text",
    "unit",
}


def is_expression(node: Node) -> bool:
    return node.op not in _COLLECTIONS and all(is_expression(a) for a in node.args)


def infinite(node: Node) -> int:
    """1 for infinity, -1 for minus infinity, 0 for all else."""
    if node == Node("const", (), "inf"):
        return 1
    return -infinite(node.args[0]) if node.op == "neg" else 0


def expand(node: Node) -> list[Node]:
    """The members of a list or set, with every ± written out; any other node alone."""
    members = node.args if node.op in ("list", "set") else (node,)
    return [m for member in members for m in _signs(member)]


def _signs(node: Node, depth: int = 0) -> list[Node]:
    if depth > 4 or node.op in ("text", "setof"):
        return [node]
    if node.op == "pm":
        term = _signs(node.args[-1], depth + 1)
        if len(node.args) == 1:
            return [Node("neg", (t,)) for t in term] + term
        return [
            Node("add", (s, v)) for s in _signs(node.args[0], depth + 1) for t in term
            for v in (t, Node("neg", (t,)))
        ]  # fmt: skip
    for place, arg in enumerate(node.args):
        if _has_pm(arg) and node.op not in ("list", "set", "tuple"):
            return [
                node._replace(args=(*node.args[:place], choice, *node.args[place + 1 :]))
                for choice in _signs(arg, depth + 1)
            ]
    return [node]


def _has_pm(node: Node) -> bool:
    return node.op == "pm" or any(_has_pm(a) for a in node.args)


def substitute(node: Node, name: str, by: Node) -> Node:
    if node.op == "var" and node.value == name:
        return by
    return node._replace(args=tuple(substitute(a, name, by) for a in node.args))


class Piece(NamedTuple):
    """An interval; a point has equal ends that are both closed."""

    low: Node
    low_open: bool
    high: Node
    high_open: bool


class Region(NamedTuple):
    """A union of pieces; `name` is the variable of an inequality, or ''."""

    pieces: tuple[Piece, ...]
    name: str = ""


_INF = Node("const", (), "inf")
_MINUS_INF = Node("neg", (_INF,))
_LINE = Region((Piece(_MINUS_INF, True, _INF, True),))


def region(node: Node) -> Region | None:
    """The part of the real line that an interval, inequality or set of points describes."""
    if node.op == "reals":
        return _LINE
    if node.op == "tuple" and len(node.args) == 2 and all(is_expression(a) for a in node.args):
        brackets = str(node.value)
        return Region((Piece(node.args[0], brackets[0] == "(", node.args[1], brackets[1] == ")"),))
    if node.op in ("set", "list") and node.args and all(is_expression(a) for a in node.args):
        return Region(tuple(Piece(a, False, a, False) for a in expand(node)))
    if node.op == "label" and is_expression(node.args[0]):
        return Region((Piece(node.args[0], False, node.args[0], False),), str(node.value))
    if node.op in ("setof", "label"):
        return region(node.args[0]) if len(node.args) == 1 else None
    if node.op == "rel":
        return _inequality(node)
    if node.op in ("union", "inter"):
        parts = [region(a) for a in node.args]
        if any(p is None for p in parts):
            return None
        known = [p for p in parts if p is not None]
        names = {p.name for p in known if p.name}
        if len(names) > 1:
            return None
        name = next(iter(names), "")
        if node.op == "union":
            return Region(tuple(piece for p in known for piece in p.pieces), name)
        return _intersect(known, name)
    if node.op == "diff" or (node.op == "add" and node.args[1].op == "neg"):
        first = region(node.args[0])
        other = node.args[1] if node.op == "diff" else node.args[1].args[0]
        second = region(other) if other.op in ("set", "tuple", "setof", "union") else None
        if first is None or second is None:
            return None
        outside = _complement(second)
        return None if outside is None else _intersect([first, outside], first.name)
    return None


def _inequality(node: Node) -> Region | None:
    """x < 3, -1 < x <= 2, 2x >= 6 and a != 2 as a region of the one variable."""
    ops = node.value
    if not isinstance(ops, tuple) or not all(is_expression(a) for a in node.args):
        return None
    if len(ops) == 2:
        low, middle, high = node.args
        up = {ops[0], ops[1]} <= {"<", "<="}
        down = {ops[0], ops[1]} <= {">", ">="}
        if not (up or down) or not _single(middle):
            return None
        if down:
            low, high, ops = high, low, (ops[1], ops[0])
        opens = ("<" in ops[0] and "=" not in ops[0]) or ops[0] == ">", ops[1] in ("<", ">")
        return Region((Piece(low, opens[0], high, opens[1]),), _single(middle))
    if len(ops) != 1 or ops[0] not in ("<", "<=", ">", ">=", "!="):
        return None
    left, right = node.args
    op = ops[0]
    if not _single(left) and _single(right):
        left, right, op = right, left, FLIP.get(op, op)
    name = _single(left)
    if not name or name in values.variables(right):
        solved = _linear(node.args[0], node.args[1])
        if solved is None:
            return None
        name, right, flipped = solved
        op = FLIP.get(ops[0], ops[0]) if flipped else ops[0]
    if op == "!=":
        return Region((Piece(_MINUS_INF, True, right, True), Piece(right, True, _INF, True)), name)
    if op[0] == "<":
        return Region((Piece(_MINUS_INF, True, right, op == "<"),), name)
    return Region((Piece(right, op == ">", _INF, True),), name)


def _single(node: Node) -> str:
    """The name when a node is a variable or f(x), else ''."""
    if node.op == "var":
        return str(node.value)
    if node.op == "func" and str(node.value).endswith("()"):
        return f"{node.value}{sorted(values.variables(node))}"
    return (
        "AB"
        if node.op == "mul"
        and is_name(node)
        and len(node.args) == 2
        and all(a.op == "var" and str(a.value).isupper() for a in node.args)
        else ""
    )


def _linear(left: Node, right: Node) -> tuple[str, Node, bool] | None:
    """(x, b, flipped) when left - right is a(x - b) with numbers a and b; flipped when a < 0."""
    gap = Node("add", (left, Node("neg", (right,))))
    names = values.variables(gap)
    if len(names) != 1:
        return None
    (name,) = names
    try:
        at = [
            values.exact(substitute(gap, name, Node("num", (), Fraction(x)))) for x in (0, 1, 2, 7)
        ]
    except values.Undefined:
        return None
    zero, one, two, seven = at
    if zero is None or one is None or two is None or seven is None:
        return None
    slope = one - zero
    if not slope or two - one != slope or seven - zero != 7 * slope:
        return None
    return name, Node("num", (), -zero / slope), slope < 0


def _key(node: Node) -> Fraction | None:
    """A finite real end as a close rational, for ordering only."""
    try:
        value = values.exact(node)
    except values.Undefined:
        return None
    if value is not None:
        return value
    number = values.real(node)
    if number is None:
        return None
    return Fraction(int(number * 2**200), 2**200)


_FAR = Fraction(10) ** 400


def _ends(piece: Piece) -> tuple[Fraction, Fraction] | None:
    ends = []
    for node in (piece.low, piece.high):
        side = infinite(node)
        value = side * _FAR if side else _key(node)
        if value is None:
            return None
        ends.append(value)
    return ends[0], ends[1]


def tidy(pieces: tuple[Piece, ...]) -> list[Piece]:
    """Sorted and merged when all ends are numbers; as they are when not."""
    known = [(e, p) for p in pieces for e in [_ends(p)] if e is not None]
    if len(known) != len(pieces) or len(pieces) > MAX_MEMBERS:
        return list(pieces)
    known.sort(key=lambda k: (k[0][0], k[1].low_open, k[0][1]))
    merged: list[tuple[tuple[Fraction, Fraction], Piece]] = []
    for ends, piece in known:
        if merged:
            (low, high), last = merged[-1]
            touching = ends[0] < high or (
                ends[0] == high and not (piece.low_open and last.high_open)
            )
            if touching:
                if ends[1] > high or (ends[1] == high and not piece.high_open):
                    last = last._replace(high=piece.high, high_open=piece.high_open)
                    high = ends[1]
                merged[-1] = ((low, high), last)
                continue
        merged.append((ends, piece))
    return [p for _, p in merged]


def _intersect(parts: list[Region], name: str) -> Region | None:
    current = list(parts[0].pieces)
    for part in parts[1:]:
        found = []
        for a in current:
            for b in part.pieces:
                ends_a, ends_b = _ends(a), _ends(b)
                if ends_a is None or ends_b is None:
                    return None
                low = max((ends_a[0], a.low_open), (ends_b[0], b.low_open))
                high = min((ends_a[1], not a.high_open), (ends_b[1], not b.high_open))
                low_node = a.low if (ends_a[0], a.low_open) == low else b.low
                high_node = a.high if (ends_a[1], not a.high_open) == high else b.high
                if low[0] < high[0] or (low[0] == high[0] and not low[1] and high[1]):
                    found.append(Piece(low_node, low[1], high_node, not high[1]))
        current = found
        if len(current) > MAX_MEMBERS:
            raise TooBig("more intervals than an answer has")
    return Region(tuple(current), name)


def _complement(inside: Region) -> Region | None:
    outside: list[Piece] = []
    low, low_open = _MINUS_INF, True
    pieces = tidy(inside.pieces)
    if any(_ends(p) is None for p in pieces):
        return None
    for piece in pieces:
        if infinite(piece.low) != -1:
            outside.append(Piece(low, low_open, piece.low, not piece.low_open))
        low, low_open = piece.high, not piece.high_open
    if infinite(low) != 1:
        outside.append(Piece(low, low_open, _INF, True))
    return Region(tuple(outside))
