"""A comparison as one HTML file: inline SVG, no script, nothing loaded from anywhere.

Every text goes through `safe_text` and the template's autoescape.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpo_cli.compare.chart import HEIGHT, PLOT, WIDTH, Chart, chart, ticks
from grpo_cli.compare.health import CURVES
from grpo_cli.compare.model import Comparison
from grpo_cli.compare.tables import health_table, scores_table, seeds_table, versus_table
from grpo_cli.compare.text import remarks
from grpo_cli.compare.words import is_share, unit
from grpo_cli.report import safe_text

if TYPE_CHECKING:
    from jinja2 import Template


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
    return page_template("report.html.j2").render(
        comparison=comparison,
        runs=seeds_table(comparison),
        remarks=remarks(comparison),
        charts=_charts(comparison),
        **findings(comparison),
    )


def findings(comparison: Comparison) -> dict[str, Any]:
    """What the templates need for the tables and the chart of differences."""
    tables = [scores_table(comparison), versus_table(comparison), health_table(comparison)]
    bars, zero, marks = _forest(comparison)
    return {
        "tables": [table for table in tables if table is not None],
        "bars": bars,
        "zero": zero,
        "ticks": marks,
        "unit": unit(comparison.metric),
    }


def page_template(name: str, folder: Path | None = None) -> Template:
    """A template of this folder, or of `folder`, that escapes all text and knows the charts."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    here = Path(__file__).parent
    environment = Environment(
        loader=FileSystemLoader([folder or here, here]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["safe_text"] = lambda text: " ".join(safe_text(str(text)).split())
    environment.filters["safe_lines"] = lambda text: safe_text(str(text))
    environment.globals.update(width=WIDTH, height=HEIGHT, plot=PLOT)
    return environment.get_template(name)


def _charts(comparison: Comparison) -> list[Chart]:
    arms = comparison.arms
    metric = comparison.metric
    share = is_share(metric)
    steps = [(arm.name, arm.by_step) for arm in arms]
    tokens = [(arm.name, arm.by_tokens) for arm in arms]
    charts = [
        chart(f"{metric} by step", "step", steps, share),
        chart(f"{metric} by tokens", "sampled tokens", tokens, share),
    ]
    for key in CURVES:
        curves = [(arm.name, arm.health_curves[key]) for arm in arms if key in arm.health_curves]
        charts.append(chart(f"{key} by step", "step", curves, is_share(key)))
    return [drawn for drawn in charts if drawn.lines]


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
    marks = [(place(x), f"{scale * x:+.3g}" if x else "0") for x in ticks(low, high)]
    return bars, place(0.0), marks
