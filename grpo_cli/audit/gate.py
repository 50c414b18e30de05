"""`--gate`: terms such as `fn<=0.05` over the audit's figures, all of which must hold."""

from __future__ import annotations

import difflib
import math
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from grpo_cli.errors import error

_COMPARE: dict[str, Callable[[float, float], bool]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "==": operator.eq,
    "<": operator.lt,
    ">": operator.gt,
}
_TERM = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)\s*(<=|>=|==|<|>)\s*([^\s,]+)")
FIGURES = {
    "fn": "headline share of right answers rejected",
    "fn_upper": "its upper 95 % bound",
    "fp": "headline share of wrong answers accepted",
    "fp_upper": "its upper 95 % bound",
    "j": "Youden's J = 1 - FN - FP",
    "j_lower": "its lower 95 % bound",
    "golds": "share of golds accepted as answers to themselves",
    "golds_unparsable": "number of golds that the verifier cannot read",
    "no_verdict": "share of the rows without a verdict (error, timeout)",
    "exploits": "number of exploit families that pass",
    "lazy": "reward of the best policy that knows nothing",
    "lazy_excess": "what it earns above its base rate",
    "asymmetric": "share of pairs judged one way and not the other",
    "intransitive": "share of chains a = b = c without a = c",
    "intransitive_policy": "the same with percent signs, units and rounding among the spellings",
    "p99_s": "99th percentile of a call's seconds",
    "timeouts": "number of ordinary calls over the limit",
    "bombs": "number of costly answers that were not contained",
    "nondeterministic": "number of verdicts that changed when asked again",
    "code_attacks": "number of attacks on the sandbox that were not contained",
}


@dataclass(frozen=True, slots=True)
class Term:
    """One comparison.

    Example:
        Term("fn", "<=", 0.05)
    """

    figure: str
    sign: str
    bound: float


@dataclass(frozen=True, slots=True)
class TermResult:
    """A term with what was measured; a figure that was not measured (NaN) never holds."""

    term: Term
    measured: float
    holds: bool

    def __str__(self) -> str:
        """`PASS fn<=0.05 (0.011)`."""
        term = f"{self.term.figure}{self.term.sign}{self.term.bound:g}"
        value = "not measured" if math.isnan(self.measured) else f"{self.measured:.4g}"
        return f"{'PASS' if self.holds else 'FAIL'} {term} ({value})"


def parse_gate(text: str) -> list[Term]:
    """The terms of a gate, separated by spaces, commas or `and`.

    Raises:
        GrpoError: GR211 for text that is no term and for an unknown figure.
    """
    rest = re.sub(r"(?<![A-Za-z0-9_])and(?![A-Za-z0-9_])", " ", text)
    terms = []
    for match in _TERM.finditer(rest):
        name, sign, bound = match.groups()
        if name not in FIGURES:
            close = difflib.get_close_matches(name, FIGURES, n=1)
            hint = f"did you mean '{close[0]}'? " if close else ""
            raise error(
                "GR211",
                f"--gate knows no figure '{name}'",
                hint=f"{hint}figures: {', '.join(FIGURES)}",
            )
        try:
            value = float(bound.removesuffix("%")) / (100 if bound.endswith("%") else 1)
        except ValueError:
            value = math.nan
        if math.isnan(value):
            raise error("GR211", f"--gate: '{bound}' is not a number", hint="such as fn<=0.05")
        terms.append(Term(name, sign, value))
    left = _TERM.sub(" ", rest).replace(",", " ").strip()
    if left or not terms:
        raise error(
            "GR211",
            f"--gate cannot read '{left or text}'",
            hint='write terms such as "fn<=0.05 fp_upper<=0.02 j_lower>=0.85"',
        )
    return terms


def apply_gate(terms: list[Term], figures: Mapping[str, float]) -> list[TermResult]:
    """Every term against the figures of an audit."""
    found = []
    for term in terms:
        measured = figures.get(term.figure, math.nan)
        holds = not math.isnan(measured) and _COMPARE[term.sign](measured, term.bound)
        found.append(TermResult(term, measured, holds))
    return found
