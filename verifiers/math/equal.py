"""Whether two answers mean the same, by structure, under a policy.

Collections, intervals, inequalities, equations, labels and units are handled here; what is left are
expressions, for `values`. What the grammar could not read is compared as words, and by math-verify
when both sides look like formulas.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

from . import values
from .notation import UNITS, TooBig
from .regions import (
    FLIP,
    MAX_MEMBERS,
    Piece,
    Region,
    expand,
    infinite,
    is_expression,
    region,
    substitute,
    tidy,
)
from .tree import Node

_SIX = 6


@dataclass(frozen=True, slots=True)
class Policy:
    """The answers to the questions that have no right answer; see the verifier's docstring."""

    percent: str = "sign"
    order: str = "lists_free"
    rounding: str = "reference"
    units: str = "optional"


def same(reference: Node, answer: Node, policy: Policy) -> bool:
    """True when the answer means the reference. Only rounding looks at which side is which."""
    comparison = _Comparison(policy)
    if comparison.same(reference, answer):
        return True
    # k pi and n pi name the same family of numbers
    names = [values.variables(n) for n in (reference, answer)]
    if names[0] == names[1] or not all(len(n) == 1 and n <= _WHOLE_NAMES for n in names):
        return False
    if not (_has_pi(reference) and _has_pi(answer)):
        return False
    (old,), (new,) = names[1], names[0]
    return comparison.same(reference, substitute(answer, old, Node("var", (), new)))


class _Comparison:
    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.left = 4000  # comparisons until the answer counts as too big

    def same(self, ref: Node, ans: Node) -> bool:
        self.left -= 1
        if self.left < 0:
            raise TooBig("more parts than an answer has")
        if ref == ans:
            return True
        if "text" in (ref.op, ans.op):  # words, without their spaces
            words = [str(n.value).replace(" ", "") for n in (ref, ans) if n.op == "text"]
            return len(words) == 2 and words[0] == words[1]
        if ref.op == "label" or ans.op == "label":
            return self.labels(ref, ans)
        refs, answers = expand(ref), expand(ans)
        if len(refs) != 1 or len(answers) != 1:
            return self.lists(ref, ans, refs, answers)
        ref, ans = refs[0], answers[0]
        if "unit" in (ref.op, ans.op) or "deg" in (ref.op, ans.op) or "pct" in (ref.op, ans.op):
            return self.quantities(ref, ans)
        if ref.op == "matrix" or ans.op == "matrix":
            return self.matrices(ref, ans)
        if ref.op == "tuple" and ans.op == "tuple":
            alike = ref.value == ans.value or min(len(ref.args), len(ans.args)) > 2
            if alike and self.ordered(ref.args, ans.args):
                return True
            if len(ref.args) != 2 or ref.value != ans.value:
                return False
        if ref.op == "rel" and ans.op == "rel" and self.relations(ref, ans):
            return True
        one, two = region(ref), region(ans)
        if one is not None and two is not None:
            return self.regions(one, two)
        if ref.op == "ratio" or ans.op == "ratio":
            return self.ratios(ref, ans)
        return self.expressions(ref, ans)

    # -- names, lists, tuples

    def labels(self, ref: Node, ans: Node) -> bool:
        if "rel" in (ref.op, ans.op):  # y = 2x + 1 is an equation like any other
            one, two = _equation(ref), _equation(ans)
            if one is not None and two is not None:
                return self.relations(one, two)
        if ref.op == "label" and ans.op == "label":
            renamed = _renamed(ref, ans)
            if renamed is not None:
                return self.same(ref.args[0], renamed)
            return False
        if ref.op == "label":
            return self.same(ref.args[0], ans)
        return self.same(ref, ans.args[0])

    def lists(self, ref: Node, ans: Node, refs: list[Node], answers: list[Node]) -> bool:
        kinds = {ref.op, ans.op}
        if "tuple" in kinds:  # (1, 2) against 1, 2: the tuple's order counts
            pair = ref if ref.op == "tuple" else ans
            if "set" in kinds or (pair.value != "()" and len(pair.args) < 3):
                return False
            refs = list(ref.args) if ref.op == "tuple" else refs
            answers = list(ans.args) if ans.op == "tuple" else answers
            return self.ordered(refs, answers)
        if kinds & {"rel", "union", "inter", "setof", "diff"}:
            one, two = region(ref), region(ans)
            return one is not None and two is not None and self.regions(one, two)
        if len(refs) > MAX_MEMBERS or len(answers) > MAX_MEMBERS:
            raise TooBig("more members than an answer has")
        if "set" in kinds:
            refs, answers = self.distinct(refs), self.distinct(answers)
        named = (
            [n.value for n in refs if n.op == "label"],
            [n.value for n in answers if n.op == "label"],
        )
        if len(named[0]) == len(refs) and len(named[1]) == len(answers):
            if len(refs) != len(answers):
                return False
            if len(set(named[0])) == len(refs):
                if set(named[0]) != set(named[1]):
                    return False
                by_name = {n.value: n for n in answers}
                return all(self.same(n, by_name[n.value]) for n in refs)
        if self.policy.order == "strict" and "set" not in kinds:
            return self.ordered(refs, answers)
        return self.unordered(refs, answers)

    def ordered(
        self, refs: list[Node] | tuple[Node, ...], answers: list[Node] | tuple[Node, ...]
    ) -> bool:
        if len(refs) != len(answers) or len(refs) > MAX_MEMBERS:
            return False
        if self.policy.order == "free" and len(refs) > 1:
            return self.unordered(list(refs), list(answers))
        return all(self.same(r, a) for r, a in zip(refs, answers, strict=True))

    def unordered(self, refs: list[Node], answers: list[Node]) -> bool:
        if len(refs) != len(answers):
            return False
        rest = list(answers)
        for wanted in refs:
            found = next((i for i, a in enumerate(rest) if self.same(wanted, a)), None)
            if found is None:
                return False
            del rest[found]
        return True

    def distinct(self, nodes: list[Node]) -> list[Node]:
        kept: list[Node] = []
        for node in nodes:
            if not any(self.same(node, k) for k in kept):
                kept.append(node)
        return kept

    def matrices(self, ref: Node, ans: Node) -> bool:
        if ref.op == ans.op:
            return len(ref.args) == len(ans.args) and all(
                len(r.args) == len(a.args)
                and all(self.same(x, y) for x, y in zip(r.args, a.args, strict=True))
                for r, a in zip(ref.args, ans.args, strict=True)
            )
        matrix, other = (ref, ans) if ref.op == "matrix" else (ans, ref)
        if other.op != "tuple" or any(len(r.args) != 1 for r in matrix.args):
            return False
        column = tuple(r.args[0] for r in matrix.args)
        return (
            self.ordered(column, other.args)
            if ref.op == "matrix"
            else self.ordered(other.args, column)
        )

    def ratios(self, ref: Node, ans: Node) -> bool:
        if ref.op == ans.op == "ratio":
            if len(ref.args) != len(ans.args):
                return False
            if all(self.same(r, a) for r, a in zip(ref.args, ans.args, strict=True)):
                return True
            if _clock(ref) and _clock(ans):
                return False
            return all(
                values.equal(Node("mul", (r, ans.args[0])), Node("mul", (ref.args[0], a)))
                for r, a in zip(ref.args[1:], ans.args[1:], strict=True)
            )
        return len(ref.args if ref.op == "ratio" else ans.args) == 2 and self.expressions(ref, ans)

    # -- units

    def quantities(self, ref: Node, ans: Node) -> bool:
        """Units, percent and degrees: see the policies."""
        if "pct" in (ref.op, ans.op):
            return self.percents(ref, ans)
        one, two = _quantity(ref), _quantity(ans)
        if not two[1]:
            two = _letter_unit(two[0], one[1])
        if not one[1]:
            one = _letter_unit(one[0], two[1])
        if one[1] == two[1]:
            return self.same(one[0], two[0])
        if ("deg" in (one[1], two[1]) and "" in (one[1], two[1])) or {one[1], two[1]} == {
            "deg",
            "rad",
        }:
            degrees, bare = (one, two) if one[1] == "deg" else (two, one)
            if bare[1] == "" and self.policy.units != "strict" and self.same(one[0], two[0]):
                return True
            return values.equal(Node("deg", (degrees[0],)), bare[0])
        if self.policy.units == "ignore":
            return self.same(one[0], two[0])
        if "" in (one[1], two[1]):
            return self.policy.units == "optional" and self.same(one[0], two[0])
        shared = set(re.findall(r"\w{3,}", one[1])) & set(re.findall(r"\w{3,}", two[1]))
        return bool(shared - _MEASURE_WORDS) and self.same(one[0], two[0])

    def percents(self, ref: Node, ans: Node) -> bool:
        both = ref.op == ans.op
        one = ref.args[0] if ref.op == "pct" else ref
        two = ans.args[0] if ans.op == "pct" else ans
        if both:
            return self.same(one, two)
        if self.policy.percent == "strict" or "unit" in (ref.op, ans.op):
            return False
        if self.policy.percent == "sign":
            return self.same(one, two)
        return self.expressions(ref, ans)

    # -- equations, inequalities, intervals

    def relations(self, ref: Node, ans: Node) -> bool:
        ops_a, ops_b = ref.value, ans.value
        if not isinstance(ops_a, tuple) or not isinstance(ops_b, tuple):
            return False
        if len(ops_a) != len(ops_b):
            return False
        for sides, ops in (
            (ans.args, ops_b),
            (ans.args[::-1], tuple(FLIP.get(o, o) for o in ops_b[::-1])),
        ):
            if ops == ops_a and all(self.same(r, a) for r, a in zip(ref.args, sides, strict=True)):
                return True
        if len(ops_a) != 1 or not all(is_expression(s) for s in ref.args + ans.args):
            return False
        (op_a,), (op_b,) = ops_a, ops_b
        one, two = (
            Node("add", (ref.args[0], Node("neg", (ref.args[1],)))),
            Node("add", (ans.args[0], Node("neg", (ans.args[1],)))),
        )
        if op_a == op_b and op_a in ("=", "!="):
            return values.proportional(one, two, positive=False)
        if op_a == op_b:
            return values.proportional(one, two, positive=True)
        if op_b == FLIP.get(op_a):
            return values.proportional(one, Node("neg", (two,)), positive=True)
        return False

    def regions(self, one: Region, two: Region) -> bool:
        if one.name and two.name and one.name != two.name:
            return False
        first, second = tidy(one.pieces), tidy(two.pieces)
        if len(first) != len(second):
            return False
        rest = list(second)
        for piece in first:
            found = next((i for i, p in enumerate(rest) if self.piece(piece, p)), None)
            if found is None:
                return False
            del rest[found]
        return True

    def piece(self, one: Piece, two: Piece) -> bool:
        return (
            (one.low_open, one.high_open) == (two.low_open, two.high_open)
            and self.same(one.low, two.low)
            and self.same(one.high, two.high)
        )

    # -- expressions

    def expressions(self, ref: Node, ans: Node) -> bool:
        if not is_expression(ref) or not is_expression(ans):
            return False
        if infinite(ref) or infinite(ans):
            return infinite(ref) == infinite(ans)
        if values.equal(ref, ans):
            return True
        if self.policy.rounding == "strict":
            return False
        return _rounded(ref, ans, digits=3) or _rounded(ans, ref, digits=_SIX)


_WHOLE_NAMES = {"k", "n", "m", "l"}


def _has_pi(node: Node) -> bool:
    return node == Node("const", (), "pi") or any(_has_pi(a) for a in node.args)


_MEASURE_WORDS = {
    "per",
    "square",
    "cubic",
    "unit",
    "day",
    "week",
    "month",
    "cent",
    "min",
    "deg",
    "rad",
    "gal",
    "mph",
}


def _equation(node: Node) -> Node | None:
    """`y = ...` as a relation, when the name is one variable."""
    if node.op == "rel":
        return node
    name = str(node.value)
    if not re.fullmatch(r"[a-zA-Z]", name) or not is_expression(node.args[0]):
        return None
    return Node("rel", (Node("var", (), name), node.args[0]), ("=",))


def _renamed(ref: Node, ans: Node) -> Node | None:
    """The answer's value in the reference's names: f(t) = t + 1 says what f(x) = x + 1 says."""
    one, two = str(ref.value), str(ans.value)
    value = ans.args[0]
    if one.replace(" ", "") == two.replace(" ", ""):
        return value
    shapes = [re.fullmatch(r"(\w+'*)\(([a-zA-Z])\)", name) for name in (one, two)]
    if shapes[0] is None or shapes[1] is None or shapes[0][1] != shapes[1][1]:
        return None
    if shapes[0][2] in values.variables(value):
        return None
    return substitute(value, shapes[1][2], Node("var", (), shapes[0][2]))


def _quantity(node: Node) -> tuple[Node, str]:
    if node.op == "deg":
        return node.args[0], "deg"
    if node.op == "unit":
        return node.args[0], str(node.value)
    if node.op == "neg" and node.args[0].op in ("deg", "unit"):
        inner, unit = _quantity(node.args[0])
        return Node("neg", (inner,)), unit
    return node, ""


def _letter_unit(node: Node, unit: str) -> tuple[Node, str]:
    """Beside a real unit, the letter in `5 m` is one too; alone it is a variable."""
    if node.op == "mul" and node.args[1].op == "var" and UNITS.get(str(node.args[1].value)) == unit:
        return node.args[0], unit
    return node, ""


def _clock(node: Node) -> bool:
    """12:30 may be a time, and 12:30 is not 24:60."""
    second = node.args[1].value
    return isinstance(second, Fraction) and (second == 0 or 10 <= second < 60)


def _rounded(decimal: Node, other: Node, digits: int) -> bool:
    """True when `decimal` is the rounding of a value that no decimal states exactly."""
    sign = 1
    while decimal.op == "neg":
        decimal, sign = decimal.args[0], -sign
    if decimal.op != "dec" or not isinstance(decimal.value, tuple) or values.variables(other):
        return False
    value, significant, places = decimal.value
    if significant < digits:
        return False
    try:
        known = values.exact(other)
    except values.Undefined:
        return False
    if known is not None:
        return not values.finite_decimal(known) and abs(known - sign * value) * 10**places * 2 <= 1
    number = values.real(other)
    if number is None:
        return False
    target = sign * value
    gap = abs(number * target.denominator - target.numerator) / target.denominator
    return bool(gap * 10**places * 2 <= 1)
