"""The tree of an answer.

num   value Fraction                     integer literal (also with a base, `11_2`)
dec   value (Fraction, digits, places)   decimal literal: significant digits, digits after `.`
var, const (pi e i inf), text            value str
add mul div pow neg fact pct deg pm      arithmetic; `pm` is ±
func                                     value name; `root` has (radicand, index)
tuple                                    value its two brackets, for example "[)"
list set setof union inter diff reals    collections; `setof` holds the condition of {x | ...}
rel                                      value the operators between the args
label                                    value name: `x = 5`, `Minimum: 5`, `x in S`
unit                                     value the unit's canonical name
ratio matrix                             a : b : c; rows as `tuple` nodes
"""

from __future__ import annotations

from typing import NamedTuple


class Node(NamedTuple):
    """A tree node; see the module's table of ops."""

    op: str
    args: tuple[Node, ...] = ()
    value: object = None


def with_unit(node: Node, unit: str) -> Node:
    """The node with a unit; percent and degrees have ops of their own."""
    if unit == "%":
        return Node("pct", (node,))
    if unit == "deg":
        return Node("deg", (node,))
    return Node("unit", (node,), unit)


def is_name(node: Node) -> bool:
    """True for what can stand left of `=` as a name: x, AB, |AB|, (p, q), V_1:V_2, NO/BO."""
    if node.op == "var":
        return True
    if node.op in ("mul", "div", "ratio", "tuple") or (node.op == "func" and node.value == "abs"):
        return all(is_name(a) for a in node.args)
    return False
