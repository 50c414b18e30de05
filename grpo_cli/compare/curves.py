"""Curves over steps and over tokens: the mean over seeds with its t band at common points."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from grpo_cli.compare.health import TOKENS
from grpo_cli.compare.model import Curve, RunRecord
from grpo_cli.stats import mean_interval

_POINTS = 25
Point = tuple[float, float]


def by_step(runs: Sequence[RunRecord], metric: str) -> Curve:
    """At the steps that every run has: nothing is interpolated or smoothed."""
    series: list[tuple[Point, ...]] = [
        tuple((float(step), value) for step, value in run.series(metric)) for run in runs
    ]
    series = [points for points in series if points]
    common = set.intersection(*({x for x, _ in points} for points in series)) if series else set()
    return _curve(series, sorted(common), [dict(points) for points in series])


def by_tokens(runs: Sequence[RunRecord], metric: str) -> Curve:
    """Over sampled training tokens, on a common grid up to what the shortest run sampled.

    Runs are evaluated at different token counts, so values between two evaluations of a run are
    interpolated on a line.
    """
    series = [points for run in runs if len(points := token_points(run, metric)) > 1]
    if not series:
        return Curve((), (), (), ())
    end = min(points[-1][0] for points in series)
    start = max(points[0][0] for points in series)
    if not start < end:
        return Curve((), (), (), (), tuple(series))
    grid = [start + (end - start) * i / (_POINTS - 1) for i in range(_POINTS)]
    return _curve(series, grid, [{x: at(points, x) for x in grid} for points in series])


def token_points(run: RunRecord, metric: str) -> tuple[Point, ...]:
    """(tokens sampled so far, value) of every record with a value, in order."""
    tokens = 0.0
    found: list[Point] = []
    for record in run.records:
        tokens = record.scalars.get(TOKENS, tokens)
        value = record.scalars.get(metric, math.nan)
        if not math.isnan(value) and (not found or tokens > found[-1][0]):
            found.append((tokens, value))
    return tuple(found)


def at(points: Sequence[Point], x: float) -> float:
    """The value at `x` on the line through the points; the ends hold beyond them."""
    before = points[0]
    for point in points:
        if point[0] >= x:
            width = point[0] - before[0]
            share = (x - before[0]) / width if width else 1.0
            return before[1] + share * (point[1] - before[1])
        before = point
    return before[1]


def area(points: Sequence[Point], end: float) -> float:
    """Mean height of the line up to `end` tokens: the area under the curve over its width."""
    if len(points) < 2 or not end > points[0][0]:
        return math.nan
    inner = [point for point in points if point[0] < end]
    line = [*inner, (end, at(points, end))]
    total = sum((b[0] - a[0]) * (a[1] + b[1]) / 2 for a, b in itertools.pairwise(line))
    return total / (end - line[0][0])


def _curve(
    series: Sequence[tuple[Point, ...]], grid: Sequence[float], values: Sequence[dict[float, float]]
) -> Curve:
    intervals = [mean_interval([known[x] for known in values]) for x in grid]
    return Curve(
        tuple(grid),
        tuple(i.mean for i in intervals),
        tuple(i.low for i in intervals),
        tuple(i.high for i in intervals),
        tuple(series),
    )
