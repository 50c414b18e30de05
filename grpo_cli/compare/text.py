"""A comparison as terminal text, markdown and JSON. Everything shown passes `safe_text`."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from dataclasses import asdict
from enum import StrEnum

from rich.cells import cell_len

from grpo_cli.compare.model import JSON, Comparison, Curve
from grpo_cli.compare.tables import Table, health_table, scores_table, seeds_table, versus_table
from grpo_cli.compare.words import changes_text, value
from grpo_cli.report import JSON_VERSION, safe_text

_BARS = "▁▂▃▄▅▆▇█"


def as_text(comparison: Comparison) -> str:
    """Tables, curves, sentences and notes for a terminal or a pipe."""
    parts = [_text_table(scores_table(comparison))]
    versus = versus_table(comparison)
    if versus is not None:
        parts.append(_text_table(versus))
    parts.append(_text_table(health_table(comparison)))
    curves = _curves(comparison)
    if curves is not None:
        parts.append(_text_table(curves))
    parts.append("\n".join(_line(arm.sentence) for arm in comparison.arms))
    for title, lines in remarks(comparison):
        parts.append("\n".join([f"{title}:", *(f"  {_line(line)}" for line in lines)]))
    return "\n\n".join(parts) + "\n"


def as_markdown(comparison: Comparison) -> str:
    """The same for a README or a pull request, with a table of all runs."""
    parts = ["\n".join(f"- {_markdown(arm.sentence)}" for arm in comparison.arms)]
    tables = [scores_table(comparison), versus_table(comparison), health_table(comparison)]
    parts += [_markdown_table(t) for t in (*tables, seeds_table(comparison)) if t is not None]
    for title, lines in remarks(comparison):
        parts.append(
            "\n".join([f"**{title.capitalize()}**", "", *(f"- {_markdown(x)}" for x in lines)])
        )
    return "\n\n".join(parts) + "\n"


def as_json(comparison: Comparison) -> str:
    """One JSON object. NaN is null."""
    tree = {"schema_version": JSON_VERSION, **asdict(comparison)}
    return json.dumps(_plain(tree), indent=2, allow_nan=False)


def remarks(comparison: Comparison) -> list[tuple[str, list[str]]]:
    """What stands below the tables, under titles: changes, remarks, allowed differences, notes."""
    changes = [f"{arm.name}: {changes_text(arm)}" for arm in comparison.arms[1:] if arm.changes]
    found = [
        ("changed against the control", changes),
        ("look out", [line for arm in comparison.arms for line in arm.remarks]),
        ("differs outside the declared axis (--allow-diff)", list(comparison.differences)),
        ("notes", list(comparison.notes)),
    ]
    return [(title, lines) for title, lines in found if lines]


def _curves(comparison: Comparison) -> Table | None:
    """A sparkline per arm over steps and over tokens, all on one scale."""
    metric = comparison.metric
    arms = [arm for arm in comparison.arms if len(arm.by_step.mean) > 1]
    if not arms:
        return None
    numbers = [y for arm in arms for c in (arm.by_step, arm.by_tokens) for y in c.mean]
    low, high = min(numbers), max(numbers)
    rows = tuple(
        (
            arm.name,
            sparkline(arm.by_step.mean, low, high),
            f"{arm.by_step.x[0]:.0f} to {arm.by_step.x[-1]:.0f}",
            sparkline(arm.by_tokens.mean, low, high),
            _span(arm.by_tokens),
        )
        for arm in arms
    )
    header = ("arm", "by step", "steps", "by tokens", "tokens")
    scale = f"{value(metric, low)} to {value(metric, high)}"
    return Table(f"{metric}, mean over seeds; every curve on one scale, {scale}", header, rows)


def sparkline(values: Sequence[float], low: float, high: float) -> str:
    """One character per value, from ▁ at `low` to █ at `high`."""
    width = (high - low) or 1.0
    bars = []
    for number in values:
        if math.isnan(number):
            bars.append(" ")
            continue
        share = min(1.0, max(0.0, (number - low) / width))
        bars.append(_BARS[min(len(_BARS) - 1, int(share * len(_BARS)))])
    return "".join(bars)


def _span(curve: Curve) -> str:
    return f"{curve.x[0]:,.0f} to {curve.x[-1]:,.0f}" if curve.x else "-"


def _text_table(table: Table) -> str:
    """Columns as wide as their longest cell: a piped table must not be cut to 80 columns."""
    lines = [tuple(_line(cell) for cell in row) for row in (table.header, *table.rows)]
    widths = [max(cell_len(line[i]) for line in lines) for i in range(len(table.header))]
    shown = [
        "  ".join(cell + " " * (w - cell_len(cell)) for cell, w in zip(line, widths, strict=True))
        for line in lines
    ]
    note = [f"({_line(table.note)})"] if table.note else []
    return "\n".join([_line(table.title), *(f"  {line}".rstrip() for line in shown), *note])


def _markdown_table(table: Table) -> str:
    lines = [[_markdown(cell) for cell in row] for row in (table.header, *table.rows)]
    head, *body = (f"| {' | '.join(line)} |" for line in lines)
    rule = f"|{' --- |' * len(table.header)}"
    note = ["", _markdown(table.note)] if table.note else []
    return "\n".join([f"**{_markdown(table.title)}**", "", head, rule, *body, *note])


def _line(text: str) -> str:
    """One line of safe text."""
    return " ".join(safe_text(text).split())


def _markdown(text: str) -> str:
    return re.sub(r"([\\`*\[\]<>|])", r"\\\1", _line(text))


def _plain(node: object) -> JSON:
    if isinstance(node, dict):
        return {str(key): _plain(child) for key, child in node.items()}
    if isinstance(node, list | tuple):
        return [_plain(child) for child in node]
    if isinstance(node, float):
        return node if math.isfinite(node) else None
    if isinstance(node, StrEnum):
        return node.value
    assert node is None or isinstance(node, str | int | bool), node
    return node
