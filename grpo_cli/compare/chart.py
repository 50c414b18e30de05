"""Curves as SVG coordinates, for every page that draws some; `chart.html.j2` has the elements."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from grpo_cli.compare.model import Curve

# Colours that stay apart for the colour-blind (Okabe and Ito 2008), then repeat with dashes. A page
# with a dark form names its own as --c0 and so on.
_OKABE_ITO = ("#000000", "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
COLOURS = tuple(f"var(--c{i}, {colour})" for i, colour in enumerate(_OKABE_ITO))

WIDTH, HEIGHT = 420, 240
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 24, 8, 30
PLOT = (_LEFT, _TOP, WIDTH - _RIGHT, HEIGHT - _BOTTOM)
"""Left, top, right and bottom of the frame."""


@dataclass(frozen=True, slots=True)
class Line:
    """One arm in a chart, as SVG coordinates."""

    name: str
    colour: str
    dash: str
    mean: str
    band: str
    seeds: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Chart:
    """Lines in one frame with its ticks; no lines when nothing has two points."""

    title: str
    x_label: str
    lines: tuple[Line, ...]
    x_ticks: tuple[tuple[float, str], ...]
    y_ticks: tuple[tuple[float, str], ...]
    y_label: str = ""


def chart(
    title: str,
    x_label: str,
    curves: Sequence[tuple[str, Curve]],
    share: bool,
    *,
    y_label: str = "",
) -> Chart:
    """The named curves on common axes; a `share` is labelled in percent."""
    drawn = [(i, name, curve) for i, (name, curve) in enumerate(curves) if len(curve.x) > 1]
    xs = [x for _, _, curve in drawn for x in curve.x]
    ys = [y for _, _, curve in drawn for y in curve.mean]
    ys += [y for _, _, c in drawn for points in c.seeds for x, y in points if x <= max(c.x)]
    if not xs or not ys:
        return Chart(title, x_label, (), (), (), y_label)
    x_low, x_high, y_low, y_high = min(xs), max(xs), min(ys), max(ys)
    # What rounding leaves of equal values is no spread: its ticks would all be one number.
    size = max(abs(y_low), abs(y_high))
    spread = y_high - y_low if y_high - y_low > 1e-9 * size else 0.0
    pad = 0.05 * spread or 0.05 * size or 1.0
    y_low, y_high = y_low - pad, y_high + pad

    def place(x: float, y: float) -> tuple[float, float]:
        # A band may reach beyond the seeds: it is cut at the frame.
        y = min(max(y, y_low), y_high)
        across = (x - x_low) / ((x_high - x_low) or 1.0)
        up = (y - y_low) / (y_high - y_low)
        return (
            round(_LEFT + across * (WIDTH - _LEFT - _RIGHT), 1),
            round(HEIGHT - _BOTTOM - up * (HEIGHT - _TOP - _BOTTOM), 1),
        )

    def path(points: Sequence[tuple[float, float]]) -> str:
        kept = [place(x, y) for x, y in points if not math.isnan(y) and x <= x_high]
        return " ".join(f"{x},{y}" for x, y in kept)

    lines = []
    for i, name, curve in drawn:
        upper = list(zip(curve.x, curve.high, strict=True))
        lower = list(zip(curve.x, curve.low, strict=True))
        lines.append(
            Line(
                name=name,
                colour=COLOURS[i % len(COLOURS)],
                dash="" if i < len(COLOURS) else f"{2 + i // len(COLOURS)} 3",
                mean=path(list(zip(curve.x, curve.mean, strict=True))),
                band=path([*upper, *reversed(lower)]),
                seeds=tuple(path(points) for points in curve.seeds),
            )
        )
    x_ticks = tuple((place(x, y_low)[0], f"{x:,.0f}") for x in ticks(x_low, x_high))
    marks = ticks(y_low, y_high)
    y_ticks = tuple((place(x_low, y)[1], _shown(y, marks, share)) for y in marks)
    return Chart(title, x_label, tuple(lines), x_ticks, y_ticks, y_label)


def _shown(value: float, marks: Sequence[float], share: bool) -> str:
    """A tick with as many digits as tell it from its neighbours."""
    scale = 100 if share else 1
    gap = scale * min((b - a for a, b in pairwise(marks)), default=abs(value) or 1.0)
    digits = max(0, -math.floor(math.log10(gap) + 1e-9))
    if share:
        return f"{value:.{digits}%}"
    return f"{value:,.{digits}f}" if digits <= 3 else f"{value + 0.0:.{_figures(marks, gap)}g}"


def _figures(marks: Sequence[float], gap: float) -> int:
    """Significant figures that tell apart ticks with this gap."""
    largest = max(abs(mark) for mark in marks) or gap
    return max(1, math.floor(math.log10(largest)) - math.floor(math.log10(gap) + 1e-9) + 1)


def ticks(low: float, high: float) -> list[float]:
    """About five round numbers within the range."""
    if not high > low:
        return [low]
    raw = (high - low) / 5
    size = 10.0 ** math.floor(math.log10(raw))
    step = next(m * size for m in (1, 2, 5, 10) if m * size >= raw)
    first = math.ceil(low / step)
    digits = 12 - math.floor(math.log10(step))
    return [round(i * step, digits) for i in range(first, math.floor(high / step) + 1)]
