"""Error rates with intervals that count problems, not rows, and Youden's J.

Rows of one problem are not independent: the same gold in nine spellings, or eight samples of one
question, fail together. So each problem gives one number, the share of its rows that went wrong,
and the interval is that of as many problems: right when rows of a problem fail together, wider than
needed when they do not.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from grpo_cli.audit.rows import Judged
from grpo_cli.stats import clopper_pearson, wilson


@dataclass(frozen=True, slots=True)
class Rate:
    """A share of errors. All NaN, with counts of 0, when nothing was measured.

    Example:
        Rate(value=0.011, low=0.005, high=0.021, wrong=8, rows=737, problems=98)
    """

    value: float
    """Mean over the problems."""
    low: float
    high: float
    """95 %: Wilson, or Clopper-Pearson when there is no error (or nothing but errors)."""
    wrong: int
    rows: int
    problems: int

    @property
    def measured(self) -> bool:
        """Whether there was any row."""
        return self.problems > 0


def error_rate(judged: Iterable[Judged]) -> Rate:
    """The share of rows whose verdict is wrong, by problem.

    Rows that stand for several completions (a sheet sampled from a run) count by their weight; the
    interval is then that of the effective number of problems (Kish 1965).
    """
    rows = list(judged)
    by_problem: dict[str, list[Judged]] = {}
    for item in rows:
        by_problem.setdefault(item.row.problem, []).append(item)
    wrong = sum(item.wrong for item in rows)
    if not rows:
        return Rate(math.nan, math.nan, math.nan, 0, 0, 0)
    weighted = any(item.row.weight != 1 for item in rows)
    shares, weights = [], []
    for items in by_problem.values():
        total = sum(item.row.weight for item in items)
        shares.append(sum(item.row.weight * item.wrong for item in items) / total)
        weights.append(total if weighted else 1.0)
    value = sum(s * w for s, w in zip(shares, weights, strict=True)) / sum(weights)
    effective = max(1, math.floor(sum(weights) ** 2 / sum(w * w for w in weights) + 1e-9))
    if wrong in (0, len(rows)):
        bound = clopper_pearson(0 if wrong == 0 else effective, effective)
    else:
        bound = wilson(min(value * effective, effective), effective)
    return Rate(value, bound.low, bound.high, wrong, len(rows), len(by_problem))


@dataclass(frozen=True, slots=True)
class Youden:
    """J = 1 - FN - FP: how far a verifier is from a coin that ignores the answer (J = 0).

    With J > 0 GRPO learns, about 1/J times slower than without noise; with J <= 0 it unlearns
    (arXiv:2601.04411).
    """

    value: float
    low: float
    high: float


def youden(fn: Rate, fp: Rate) -> Youden:
    """J with an interval from those of its two rates (Newcombe 1998, method 10)."""
    value = 1 - fn.value - fp.value
    down = math.hypot(fn.high - fn.value, fp.high - fp.value)
    up = math.hypot(fn.value - fn.low, fp.value - fp.low)
    return Youden(value, max(-1.0, value - down), min(1.0, value + up))
