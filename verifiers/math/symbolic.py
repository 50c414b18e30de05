r"""math-verify for formulas that the grammar does not read: integrals, sums, products, limits.

Only LaTeX goes in, through its ANTLR grammar (`latex2sympy`), never through SymPy's `parse_expr`,
which is built on `eval`. Its timers use `signal.alarm` and are not used; what still takes long is
cut with the worker process. The guard refuses what is known to grow.
"""

from __future__ import annotations

import re

from .notation import TooBig, clean

_ALLOWED = {
    "frac", "sqrt", "int", "iint", "sum", "prod", "lim", "sin", "cos", "tan", "cot", "sec", "csc",
    "arcsin", "arccos", "arctan", "ln", "log", "exp", "pi", "infty", "to", "cdot", "times", "div",
    "le", "leq", "ge", "geq", "ne", "neq", "lt", "gt", "alpha", "beta", "gamma", "theta", "lambda",
    "mu", "phi", "omega", "pm", "begin", "end", "cup", "cap", "binom", "tbinom", "dbinom", "dfrac",
    "tfrac", "in", "sinh", "cosh", "tanh", "mathbb", "left", "right", "rightarrow", "limits",
}  # fmt: skip
_NEEDED = re.compile(r"\\(?:int|iint|sum|prod|lim|begin)(?![a-zA-Z])")
_LARGE = re.compile(r"\d{5}|\^\s*\{?\s*-?\s*\(?\s*\d{3}|\^\s*(?:\{[^{}]*\^|[^\s{}]\^)|!")


def same(one: str, two: str) -> bool:
    """True when math-verify finds two formulas equal, in either order. Raises TooBig."""
    left, right = clean(one), clean(two)
    if not (_NEEDED.search(left) or _NEEDED.search(right)):
        return False
    if not (_formula(left) and _formula(right)):
        return False
    for text in (left, right):
        if len(text) > 300 or _LARGE.search(text):
            raise TooBig("a formula too large to work out")
    first, second = _parsed(left), _parsed(right)
    if first is None or second is None:
        return False
    from math_verify.grader import sympy_expr_eq

    def equal(a: object, b: object) -> bool:
        return bool(sympy_expr_eq(a, b, float_rounding=12, numeric_precision=30))

    return equal(first, second) or equal(second, first)


def _formula(text: str) -> bool:
    """True without prose, dots or commands that do more than mathematics."""
    commands = set(re.findall(r"\\([a-zA-Z]+)", text))
    bare = re.sub(r"\\[a-zA-Z]+|\{(?:[pbv]?matrix|cases|array)\}", " ", text)
    return commands <= _ALLOWED and not re.search(r"[a-zA-Z]{4,}|\.\.", bare)


def _parsed(text: str) -> object | None:
    from latex2sympy2_extended.latex2sympy2 import NormalizationConfig, latex2sympy
    from math_verify.grader import should_treat_as_complex

    # No unit stripping: it is what makes 5 cm equal 5 m.
    tidy = NormalizationConfig(
        basic_latex=True, units=False, malformed_operators=True, nits=True, boxed="none",
        equations=False,
    )  # fmt: skip
    real = not should_treat_as_complex(text)
    try:
        return latex2sympy(text, is_real=real, normalization_config=tidy)
    except Exception as exc:
        # The ANTLR listener raises bare Exception for every syntax error.
        return _unreadable(exc)


def _unreadable(exc: Exception) -> None:
    if isinstance(exc, MemoryError | RecursionError):
        raise TooBig("a formula too large to read") from exc
