"""The value of an expression: exact where it is rational, else many digits at chosen points.

Two expressions are equal when both are rational and the same rational, or when they agree, relative
to their size, to more than 30 digits at every point at which both are real (and to more digits
when very large or very small numbers occur in them). There is no absolute tolerance, so 1/2^99 and
1/2^98 differ. Sizes are checked before a power or factorial is worked out; `TooBig` is raised
instead.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator, Mapping
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from .exact import MAX_BITS, MAX_FACTORIAL, Undefined, exact, finite_decimal
from .notation import TooBig
from .tree import Node

__all__ = ["Undefined", "equal", "exact", "finite_decimal", "proportional", "real", "variables"]

if TYPE_CHECKING:
    Number = Any  # mpf or mpc of a private mpmath context

_PRECISION = 240
_MAX_EXTRA = 40_000

_LOCAL = threading.local()


def _context() -> Any:
    """A private mpmath context per thread: the global one is shared and its precision with it."""
    if not hasattr(_LOCAL, "context"):
        from mpmath.ctx_mp import MPContext

        _LOCAL.context = MPContext()
    return _LOCAL.context


class _Numeric:
    """One evaluation at one point. `branch` is set when a step has no single real value."""

    def __init__(self, point: Mapping[str, Fraction], precision: int) -> None:
        self.mp = _context()
        self.mp.prec = precision
        self.point = point
        self.branch = False
        self.complex = False
        self.bits = 1

    def of(self, node: Node) -> Number:
        value = self.raw(node)
        size = self.mp.mag(value) if value else 0
        if not isinstance(size, int):
            raise Undefined("an infinite value")
        if abs(size) > _MAX_EXTRA:
            raise TooBig("a number with too many digits")
        self.bits = max(self.bits, abs(size))
        return value

    def fraction(self, value: Fraction) -> Number:
        if max(value.numerator.bit_length(), value.denominator.bit_length()) > MAX_BITS:
            raise TooBig("a number with too many digits")
        return self.mp.mpf(value.numerator) / value.denominator

    def raw(self, node: Node) -> Number:
        op, mp = node.op, self.mp
        if op == "num" and isinstance(node.value, Fraction):
            return self.fraction(node.value)
        if op == "dec" and isinstance(node.value, tuple):
            return self.fraction(node.value[0])
        if op == "var":
            return self.fraction(self.point[str(node.value)])
        if op == "const":
            if node.value == "i":
                self.complex = True
                return mp.mpc(0, 1)
            if node.value == "inf":
                raise Undefined("infinity inside an expression")
            return +mp.pi if node.value == "pi" else +mp.e
        if op not in _NUMERIC_OPS:
            raise Undefined(op)
        values = [self.of(a) for a in node.args]
        if op == "neg":
            return -values[0]
        if op == "add":
            return values[0] + values[1]
        if op == "mul":
            return values[0] * values[1]
        if op in ("div", "ratio"):
            if len(values) != 2 or not values[1]:
                raise Undefined("division by zero")
            return values[0] / values[1]
        if op == "pct":
            return values[0] / 100
        if op == "deg":
            return values[0] * mp.pi / 180
        if op == "fact":
            return self.gamma(values[0] + 1)
        if op == "pow":
            return self.power(values[0], values[1])
        return self.function(str(node.value), values)

    def power(self, base: Number, exponent: Number) -> Number:
        mp = self.mp
        if not base:
            if mp.re(exponent) <= 0:
                raise Undefined("0 to the power 0 or less")
            return mp.mpf(0)
        if abs(exponent) * max(1, abs(mp.mag(base))) > _MAX_EXTRA:
            raise TooBig("a power with too many digits")
        if not mp.isint(exponent) and (mp.im(base) or base < 0):
            self.branch = True
        return mp.power(base, exponent)

    def gamma(self, value: Number) -> Number:
        if abs(value) > MAX_FACTORIAL:
            raise TooBig("a factorial with too many digits")
        if mp_nonpositive_integer(self.mp, value):
            raise Undefined("a factorial of a negative integer")
        return self.mp.gamma(value)

    def function(self, name: str, values: list[Number]) -> Number:
        mp, first = self.mp, values[0]
        if name == "root":
            if mp.im(first) == 0 and first < 0:
                index = values[1]
                if mp.isint(index) and int(index) % 2 and abs(index) < 1000:
                    return -mp.root(-first, int(index))
                self.branch = True
            if not values[1]:
                raise Undefined("a root of index 0")
            return self.power(first, 1 / values[1]) if first else mp.mpf(0)
        if name == "binom":
            top, down = values
            return self.gamma(top + 1) / (self.gamma(down + 1) * self.gamma(top - down + 1))
        if name in ("max", "min", "floor", "ceil", "sgn") and any(mp.im(v) for v in values):
            raise Undefined("an order of complex numbers")
        if name in ("max", "min"):
            return max(values) if name == "max" else min(values)
        if name in _OPAQUE or name.endswith("()"):
            return self.opaque(name, values)
        if name in ("ln", "log"):
            if not first or (len(values) > 1 and (not values[1] or values[1] == 1)):
                raise Undefined("the logarithm of 0")
            if mp.im(first) or first < 0:
                self.branch = True
            return mp.log(first) if name == "ln" else mp.log(first) / mp.log(values[1])
        if len(values) != 1 or abs(first) > 1 << 64:
            raise Undefined(f"{name} of that")
        function = _MPMATH.get(name)
        if function is None:
            raise Undefined(name)
        try:
            value = getattr(mp, function)(first)
        except (ValueError, ZeroDivisionError) as exc:
            raise Undefined(f"{name}: {exc}") from exc
        if mp.im(value) and not mp.im(first):
            self.branch = True
        return value

    def opaque(self, name: str, values: list[Number]) -> Number:
        """A function nobody knows: smooth in its arguments, different for every name."""
        seed = 1 + int.from_bytes(hashlib.sha256(name.encode()).digest()[:2], "big") / 7919
        total = self.mp.mpf(seed)
        for place, value in enumerate(values, start=1):
            if abs(value) > 1 << 20:
                raise Undefined("an unknown function far out")
            total += self.mp.sin(value * seed + place) * (seed + place) + value * place / seed
        return total


_NUMERIC_OPS = {"neg", "add", "mul", "div", "ratio", "pct", "deg", "pow", "fact", "func"}
_OPAQUE = {"bar", "det", "gcd", "lcm"}
_MPMATH = {
    "sin": "sin", "cos": "cos", "tan": "tan", "cot": "cot", "sec": "sec", "csc": "csc",
    "arcsin": "asin", "arccos": "acos", "arctan": "atan", "arccot": "acot", "sinh": "sinh",
    "cosh": "cosh", "tanh": "tanh", "arsinh": "asinh", "arcosh": "acosh", "artanh": "atanh",
    "abs": "fabs", "floor": "floor", "ceil": "ceil", "sgn": "sign",
}  # fmt: skip


def mp_nonpositive_integer(mp: Any, value: Number) -> bool:
    """True at the poles of the gamma function."""
    return bool(mp.isint(value) and mp.re(value) <= 0)


def variables(node: Node) -> frozenset[str]:
    """The names of the variables in a tree."""
    own = {str(node.value)} if node.op == "var" else set()
    return frozenset(own.union(*(variables(a) for a in node.args)))


_POINTS: tuple[tuple[int, int], ...] = (  # (kind, index): 0 positive, 1 any sign, 2 whole
    (0, 0), (0, 1), (0, 2), (1, 3), (1, 4), (1, 5), (2, 6), (2, 7), (2, 8),
)  # fmt: skip


def _points(names: frozenset[str]) -> Iterator[dict[str, Fraction]]:
    """Fixed points to compare at: the same ones in every run, process and thread."""
    if not names:
        yield {}
        return
    for kind, index in _POINTS:
        point = {}
        for place, name in enumerate(sorted(names)):
            raw = int.from_bytes(hashlib.sha256(f"{index}:{name}".encode()).digest()[:4], "big")
            if kind == 2:
                point[name] = Fraction(1 + raw % 11)
            else:
                size = Fraction(raw % 9973 + 1700, 4273)
                negative = kind == 1 and (index == 3 or (place + index) % 2 == 0)
                point[name] = -size if negative else size
        yield point


def equal(left: Node, right: Node) -> bool:
    """True when two expressions have the same value. Symmetric. Raises TooBig."""
    if left == right:
        return True
    a, b = _exact_or_none(left), _exact_or_none(right)
    if a is not None and b is not None:
        return a == b
    names = variables(left) | variables(right)
    compared = 0
    for point in _points(names):
        same = _same_at(left, right, point, must=not names)
        if same is False:
            return False
        compared += same is True
    return compared >= min(2, len(names) + 1)


def _exact_or_none(node: Node) -> Fraction | None:
    try:
        return exact(node)
    except Undefined:
        return None


def _same_at(left: Node, right: Node, point: Mapping[str, Fraction], must: bool) -> bool | None:
    """Whether the values agree at a point; None where one has no single real value there."""
    precision = _PRECISION
    for _ in range(3):
        try:
            one, two = _Numeric(point, precision), _Numeric(point, precision)
            a, b = one.of(left), two.of(right)
        except Undefined:
            return None
        except TooBig:
            if must:
                raise
            return None
        mp = one.mp
        bits = max(one.bits, two.bits)
        if precision >= _PRECISION + 2 * (bits if bits > 60 else 0):
            break
        precision = _PRECISION + 2 * bits
    wandered = (one.branch or two.branch) and not (one.complex and two.complex)
    if wandered and not must:
        return None
    largest = max(abs(a), abs(b))
    noise = mp.ldexp(1, bits - precision + 24)
    if largest <= noise:
        return True
    return bool(abs(a - b) <= mp.ldexp(largest, min(-110, bits - precision + 60)))


def real(node: Node) -> Number | None:
    """A real constant to about 60 digits, or None."""
    try:
        if variables(node):
            return None
        worker = _Numeric({}, _PRECISION)
        value = worker.of(node)
        return None if worker.mp.im(value) else worker.mp.re(value)
    except Undefined:
        return None


def proportional(left: Node, right: Node, *, positive: bool) -> bool:
    """True when left = c * right for one constant c != 0 (c > 0 when `positive`)."""
    names = variables(left) | variables(right)
    ratios = []
    for point in _points(names):
        worker, other = _Numeric(point, _PRECISION), _Numeric(point, _PRECISION)
        try:
            a, b = worker.of(left), other.of(right)
        except (Undefined, TooBig):
            continue
        if worker.branch or other.branch:
            continue
        tiny = worker.mp.ldexp(1, max(worker.bits, other.bits) - _PRECISION + 24)
        if abs(a) <= tiny or abs(b) <= tiny:
            if abs(a) <= tiny and abs(b) <= tiny:
                continue
            return False
        ratios.append(a / b)
    if len(ratios) < 2:
        return False
    first = ratios[0]
    mp = _context()
    same = all(abs(r - first) <= mp.ldexp(abs(first), -110) for r in ratios)
    return bool(same and (not positive or mp.re(first) > 0))
