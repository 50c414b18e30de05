"""Rational arithmetic on a tree, exact and within a budget of work."""

from __future__ import annotations

import math
from fractions import Fraction

from .notation import TooBig
from .tree import Node

MAX_BITS = 1 << 17
MAX_FACTORIAL = 10_000
_MAX_WORK = 300_000  # in units of (1,000 bits)^2


class Undefined(Exception):
    """Division by zero, an infinity inside arithmetic, an unknown function and the like."""


class _Exact:
    """Rational arithmetic within a budget."""

    def __init__(self) -> None:
        self.work = 0.0

    def sized(self, value: Fraction) -> Fraction:
        bits = max(value.numerator.bit_length(), value.denominator.bit_length())
        self.work += 1 + (bits / 1000) ** 2
        if bits > MAX_BITS or self.work > _MAX_WORK:
            raise TooBig("a number with too many digits")
        return value

    def of(self, node: Node) -> Fraction | None:
        op = node.op
        if op == "num":
            return node.value if isinstance(node.value, Fraction) else None
        if op == "dec":
            return node.value[0] if isinstance(node.value, tuple) else None
        if op not in _EXACT_OPS:
            return None
        values: list[Fraction] = []
        for arg in node.args:
            value = self.of(arg)
            if value is None:
                return None
            values.append(value)
        result = self.apply(node, values)
        return None if result is None else self.sized(result)

    def apply(self, node: Node, values: list[Fraction]) -> Fraction | None:
        op, first = node.op, values[0]
        if op == "neg":
            return -first
        if op == "add":
            return first + values[1]
        if op == "mul":
            return first * values[1]
        if op in ("div", "ratio"):
            if len(values) != 2:
                return None
            if not values[1]:
                raise Undefined("division by zero")
            return first / values[1]
        if op == "pct":
            return first / 100
        if op == "pow":
            return self.power(first, values[1])
        if op == "fact":
            if first.denominator != 1 or first < 0:
                return None
            if first > MAX_FACTORIAL:
                raise TooBig("a factorial with too many digits")
            self.work += (float(first) / 100) ** 2
            return Fraction(math.factorial(int(first)))
        return self.function(str(node.value), values)

    def power(self, base: Fraction, exponent: Fraction) -> Fraction | None:
        if exponent.denominator != 1:
            return None
        if not base and exponent <= 0:
            raise Undefined("0 to the power 0 or less")
        bits = max(base.numerator.bit_length(), base.denominator.bit_length())
        if abs(base) != 1 and base and bits * abs(exponent) > 2 * MAX_BITS:
            raise TooBig("a power with too many digits")
        return base ** int(exponent % 2) if abs(base) == 1 else base ** int(exponent)

    def function(self, name: str, values: list[Fraction]) -> Fraction | None:
        first = values[0]
        if name == "abs":
            return abs(first)
        if name == "floor":
            return Fraction(math.floor(first))
        if name == "ceil":
            return Fraction(math.ceil(first))
        if name in ("max", "min"):
            return max(values) if name == "max" else min(values)
        whole = all(v.denominator == 1 for v in values)
        if name in ("gcd", "lcm") and whole:
            pick = math.gcd if name == "gcd" else math.lcm
            return Fraction(pick(*(int(v) for v in values)))
        if name == "binom" and whole and values[1] >= 0 and first >= 0:
            chosen = min(values[1], first - values[1])
            if chosen > MAX_FACTORIAL or chosen * first.numerator.bit_length() > 2 * MAX_BITS:
                raise TooBig("a binomial with too many digits")
            return Fraction(math.comb(int(first), int(values[1])))
        if name == "root" and values[1] == 2 and first >= 0:
            top, bottom = math.isqrt(first.numerator), math.isqrt(first.denominator)
            if top * top == first.numerator and bottom * bottom == first.denominator:
                return Fraction(top, bottom)
        return None


_EXACT_OPS = {"neg", "add", "mul", "div", "ratio", "pct", "pow", "fact", "func"}


def exact(node: Node) -> Fraction | None:
    """The rational value of a node, or None when it has none that plain arithmetic finds."""
    return _Exact().of(node)


def finite_decimal(value: Fraction) -> bool:
    """True when the value has a decimal expansion that ends."""
    rest = value.denominator
    for prime in (2, 5):
        while rest % prime == 0:
            rest //= prime
    return rest == 1
