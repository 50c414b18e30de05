"""What a rule of `grpo doctor` is, and the words that its numbers are put in."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from grpo_cli.health.series import RunSeries, Series, Trend

Severity = Literal["red", "amber"]


@dataclass(frozen=True, slots=True)
class Symptom:
    """What a rule found, before it is put in order with the others.

    `axes` are the arguments of `--axis` to try, best first: the first that makes sense for the
    run's recipe becomes the command.
    """

    severity: Severity
    headline: str
    evidence: tuple[tuple[str, str], ...]
    steps: tuple[int, int]
    cause: str
    look_at: str
    axes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Rule:
    """One thing that can be wrong with a run.

    Rules stand in causal order. `explains` names the findings that this one brings about: when one
    of them is red, so is this.
    """

    id: str
    about: str
    check: Callable[[RunSeries], Symptom | None]
    min_steps: int = 1
    explains: frozenset[str] = frozenset()


def percent(value: float) -> str:
    """`0.031` as `3.1 %`."""
    return "unknown" if math.isnan(value) else f"{100 * value:.1f} %"


def number(value: float) -> str:
    """Three significant digits."""
    return "unknown" if math.isnan(value) else f"{value:,.3g}"


def from_to(trend: Trend | Series, show: Callable[[float], str] = number) -> str:
    """Early and late mean, and for a trend how many standard errors apart they are."""
    text = f"{show(trend.early)} → {show(trend.late)}"
    return f"{text} ({errors(trend.z)})" if isinstance(trend, Trend) else text


def errors(z: float) -> str:
    """A change in standard errors, in words."""
    return f"{z:+.1f} standard errors" if abs(z) < 100 else "more than 100 standard errors"


def span(run: RunSeries, series: Series | None = None) -> tuple[int, int]:
    """First and last step that something rests on; those of the run by default."""
    steps = series.steps if series else tuple(record.step for record in run.trained)
    return (steps[0], steps[-1]) if steps else (0, 0)


def values_axis(key: str, *values: float) -> str:
    """`optim.lr=0.0003,3e-05`: the run's own value first, which makes it the control."""
    return f"{key}={','.join(f'{value:g}' for value in values)}"


def lower_lr(run: RunSeries) -> str:
    """The axis that compares the run's learning rate with a tenth of it."""
    lr = float(run.setting("optim.lr", math.nan))
    return values_axis("optim.lr", lr, lr / 10)
