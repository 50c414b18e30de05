"""The panel: every metric that a run can put on record, with its definition and what it is for.

`docs/metrics.md` is `grpo metrics --md`.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from typing import get_args

from grpo_cli.errors import error
from grpo_cli.health import (
    panel_moe,
    panel_sampled,
    panel_self,
    panel_support,
    panel_system,
    panel_trained,
    panel_value,
)
from grpo_cli.health.panel_info import Area, MetricInfo

AREAS: tuple[str, ...] = get_args(Area)

PANEL: tuple[MetricInfo, ...] = tuple(
    sorted(
        (
            *panel_sampled.REWARD,
            *panel_self.SELF,
            *panel_sampled.GROUPS,
            *panel_sampled.COMPLETIONS,
            *panel_sampled.VERIFIER,
            *panel_sampled.EVALUATION,
            *panel_self.EVAL_SELF,
            *panel_trained.POLICY,
            *panel_support.SUPPORT,
            *panel_trained.RATIO,
            *panel_trained.LOSS,
            *panel_value.VALUE,
            *panel_trained.CORRECTION,
            *panel_system.MISMATCH,
            *panel_moe.MOE,
            *panel_system.TIME,
            *panel_system.PROGRESS,
        ),
        key=lambda info: AREAS.index(info.area),
    )
)
"""In the order of `AREAS`, and within an area as one reads them."""


def describe(name: str) -> MetricInfo:
    """The entry of a metric, by its name in `metrics.jsonl` or by the pattern of the entry.

    Raises:
        GrpoError: GR209 when no run writes such a metric.
    """
    for info in PANEL:
        if name == info.name or _matches(info.name, name):
            return info
    close = difflib.get_close_matches(name, [info.name for info in PANEL], n=1)
    raise error(
        "GR209",
        f"no metric is called `{name}`",
        hint=f"did you mean `{close[0]}`?" if close else "`grpo metrics` lists them all",
    )


def select(names: Sequence[str] = (), area: str | None = None) -> list[MetricInfo]:
    """The entries asked for: those named, in that order, or all; of one area if it is given.

    Raises:
        GrpoError: GR209 for a name or an area that does not exist.
    """
    if area is not None and area not in AREAS:
        close = difflib.get_close_matches(area, AREAS, n=1)
        known = f"the areas are {', '.join(AREAS)}"
        raise error(
            "GR209",
            f"no area of metrics is called `{area}`",
            hint=f"did you mean `{close[0]}`?" if close else known,
        )
    found = [describe(name) for name in names] if names else PANEL
    return [info for info in found if area in (None, info.area)]


def markdown(infos: Sequence[MetricInfo]) -> str:
    """A page with one table per area."""
    lines = ["# Metrics", "", *_INTRODUCTION]
    for area in AREAS:
        if rows := [info for info in infos if info.area == area]:
            lines += ["", f"## {area.capitalize()}", "", f"| {' | '.join(_COLUMNS)} |"]
            lines.append("|" + " --- |" * len(_COLUMNS))
            lines += [f"| {' | '.join(_cells(info))} |" for info in rows]
    return "\n".join(lines) + "\n"


_COLUMNS = ("metric", "definition", "unit", "why", "healthy", "on record")
_INTRODUCTION = (
    "What a run writes into `metrics.jsonl` and into MLflow, under the same names. Each has one",
    "definition for every arm, whatever the objective and the loss normalisation are: shares and",
    "means over tokens are over all trained tokens of the step, never means of means. Percentile p",
    "of n sorted values is the one at index round(p (n - 1)). What could not be counted is NaN:",
    "null in `metrics.jsonl`, absent in MLflow. A healthy range stands for a mechanism and not for",
    "a model; without one, compare the run with its own start. This page is `grpo metrics --md`.",
)


def _cells(info: MetricInfo) -> list[str]:
    cells = (info.formula, info.unit, info.why, info.healthy or "", info.when or "every step")
    return [f"`{info.name}`", *(cell.replace("|", "\\|") for cell in cells)]


def _matches(pattern: str, name: str) -> bool:
    """Whether the name fits a pattern whose parts in braces are whole numbers."""
    parts = re.split(r"\{\w+\}", pattern)
    return len(parts) > 1 and bool(re.fullmatch(r"\d+".join(map(re.escape, parts)), name))
