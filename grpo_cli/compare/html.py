"""A comparison as one HTML file: inline SVG, no script, nothing loaded from anywhere.

Every text goes through `safe_text` and the template's autoescape.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from grpo_cli.compare.health import CURVES
from grpo_cli.compare.model import ArmResult, Comparison, Curve
from grpo_cli.compare.tables import health_table, scores_table, seeds_table, versus_table
from grpo_cli.compare.text import remarks
from grpo_cli.compare.words import is_share, unit
from grpo_cli.report import safe_text

# Colours that stay apart for the colour-blind (Okabe and Ito 2008), then repeat with dashes.
_COLOURS = ("#000000", "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")

_WIDTH, _HEIGHT = 420, 240
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 24, 8, 30


@dataclass(frozen=True, slots=True)
class _Line:
    """One arm in a chart, as SVG coordinates."""

    name: str
    colour: str
    dash: str
    mean: str
    band: str
    seeds: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Chart:
    title: str
    x_label: str
    lines: tuple[_Line, ...]
    x_ticks: tuple[tuple[float, str], ...]
    y_ticks: tuple[tuple[float, str], ...]


@dataclass(frozen=True, slots=True)
class _Bar:
    """One arm's difference with its interval, as SVG coordinates."""

    name: str
    y: float
    low: float
    mean: float
    high: float
    has_interval: bool


def as_html(comparison: Comparison) -> str:
    """The whole page."""
    from jinja2 import Environment, StrictUndefined

    template = Path(__file__).with_name("report.html.j2").read_text(encoding="utf-8")
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    environment.filters["safe_text"] = lambda text: " ".join(safe_text(str(text)).split())
    tables = [scores_table(comparison), versus_table(comparison), health_table(comparison)]
    bars, zero, ticks = _forest(comparison)
    return environment.from_string(template).render(
        comparison=comparison,
        tables=[table for table in tables if table is not None],
        runs=seeds_table(comparison),
        remarks=remarks(comparison),
        charts=_charts(comparison),
        bars=bars,
        zero=zero,
        ticks=ticks,
        unit=unit(comparison.metric),
        width=_WIDTH,
        height=_HEIGHT,
        plot=(_LEFT, _TOP, _WIDTH - _RIGHT, _HEIGHT - _BOTTOM),
    )


def _charts(comparison: Comparison) -> list[_Chart]:
    arms = comparison.arms
    metric = comparison.metric
    share = is_share(metric)
    charts = [
        _chart(f"{metric} by step", "step", [(arm, arm.by_step) for arm in arms], share),
        _chart(f"{metric} by tokens", "sampled tokens", [(a, a.by_tokens) for a in arms], share),
    ]
    for key in CURVES:
        curves = [(arm, arm.health_curves[key]) for arm in arms if key in arm.health_curves]
        charts.append(_chart(f"{key} by step", "step", curves, is_share(key)))
    return [chart for chart in charts if chart.lines]


def _chart(
    title: str, x_label: str, curves: Sequence[tuple[ArmResult, Curve]], share: bool
) -> _Chart:
    drawn = [(i, arm, curve) for i, (arm, curve) in enumerate(curves) if len(curve.x) > 1]
    xs = [x for _, _, curve in drawn for x in curve.x]
    ys = [y for _, _, curve in drawn for y in curve.mean]
    ys += [y for _, _, c in drawn for points in c.seeds for x, y in points if x <= max(c.x)]
    if not xs or not ys:
        return _Chart(title, x_label, (), (), ())
    x_low, x_high, y_low, y_high = min(xs), max(xs), min(ys), max(ys)
    pad = 0.05 * (y_high - y_low) or abs(y_high) * 0.05 or 1.0
    y_low, y_high = y_low - pad, y_high + pad

    def place(x: float, y: float) -> tuple[float, float]:
        # A band may reach beyond the seeds: it is cut at the frame.
        y = min(max(y, y_low), y_high)
        across = (x - x_low) / ((x_high - x_low) or 1.0)
        up = (y - y_low) / (y_high - y_low)
        return (
            round(_LEFT + across * (_WIDTH - _LEFT - _RIGHT), 1),
            round(_HEIGHT - _BOTTOM - up * (_HEIGHT - _TOP - _BOTTOM), 1),
        )

    def path(points: Sequence[tuple[float, float]]) -> str:
        kept = [place(x, y) for x, y in points if not math.isnan(y) and x <= x_high]
        return " ".join(f"{x},{y}" for x, y in kept)

    lines = []
    for i, arm, curve in drawn:
        upper = list(zip(curve.x, curve.high, strict=True))
        lower = list(zip(curve.x, curve.low, strict=True))
        lines.append(
            _Line(
                name=arm.name,
                colour=_COLOURS[i % len(_COLOURS)],
                dash="" if i < len(_COLOURS) else f"{2 + i // len(_COLOURS)} 3",
                mean=path(list(zip(curve.x, curve.mean, strict=True))),
                band=path([*upper, *reversed(lower)]),
                seeds=tuple(path(points) for points in curve.seeds),
            )
        )
    x_ticks = tuple((place(x, y_low)[0], f"{x:,.0f}") for x in _ticks(x_low, x_high))
    shown = "{:.0%}" if share and y_high - y_low > 0.03 else "{:.1%}" if share else "{:.3g}"
    y_ticks = tuple((place(x_low, y)[1], shown.format(y)) for y in _ticks(y_low, y_high))
    return _Chart(title, x_label, tuple(lines), x_ticks, y_ticks)


def _forest(
    comparison: Comparison,
) -> tuple[list[_Bar], float, list[tuple[float, str]]]:
    """The differences with their intervals on one axis, the place of 0 and the ticks."""
    compared = [
        (arm, arm.versus.difference)
        for arm in comparison.arms
        if arm.versus is not None and not math.isnan(arm.versus.difference.mean)
    ]
    numbers = [n for _, d in compared for n in (d.low, d.mean, d.high) if not math.isnan(n)]
    if not numbers:
        return [], 0.0, []
    low, high = min(0.0, *numbers), max(0.0, *numbers)
    pad = 0.05 * (high - low) or 1.0
    low, high = low - pad, high + pad

    def place(x: float) -> float:
        return round(200 + 400 * (x - low) / (high - low), 1)

    bars = [
        _Bar(
            arm.name,
            24.0 + 26 * i,
            place(d.mean if math.isnan(d.low) else d.low),
            place(d.mean),
            place(d.mean if math.isnan(d.high) else d.high),
            not math.isnan(d.low),
        )
        for i, (arm, d) in enumerate(compared)
    ]
    scale = 100 if is_share(comparison.metric) else 1
    ticks = [(place(x), f"{scale * x:+.3g}" if x else "0") for x in _ticks(low, high)]
    return bars, place(0.0), ticks


def _ticks(low: float, high: float) -> list[float]:
    """About five round numbers within the range."""
    if not high > low:
        return [low]
    raw = (high - low) / 5
    size = 10.0 ** math.floor(math.log10(raw))
    step = next(m * size for m in (1, 2, 5, 10) if m * size >= raw)
    first = math.ceil(low / step)
    return [round(i * step, 12) for i in range(first, math.floor(high / step) + 1)]
