"""The report as terminal text, as one HTML file and as JSON.

What a verifier, a case or a model wrote is hostile to a terminal and to a browser: it goes through
`safe_text`, and in the page through `html.escape`.
"""

from __future__ import annotations

import html
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict

from rich.cells import cell_len

from grpo_cli.audit.gate import TermResult
from grpo_cli.audit.report import Report, figures
from grpo_cli.audit.tables import Table, headline_text
from grpo_cli.report import JSON_VERSION, safe_text

_STYLE = """
body{font:14px/1.45 system-ui,sans-serif;max-width:75rem;margin:2rem auto;padding:0 1rem;color:#222;
background:#fff}
table{border-collapse:collapse;margin:.5rem 0}
th,td{text-align:left;padding:.2rem .7rem;border-bottom:1px solid #ddd;vertical-align:top}
td{overflow-wrap:anywhere}
h1{font-size:1.4rem}h2{font-size:1.1rem;margin-top:1.6rem}
.head{background:#f3f3f0;padding:.8rem;border-left:4px solid #666}
.bad{color:#a00;font-weight:600}
@media(prefers-color-scheme:dark){body{color:#ddd;background:#181818}th,td{border-color:#444}
.head{background:#262626}.bad{color:#f77}}
"""
_BAD = ("PASSES", "FAILS", "NOT CONTAINED", "NO")


def to_text(tables: Sequence[Table]) -> str:
    """The tables with aligned columns."""
    parts = []
    for table in tables:
        lines = [safe_text(table.title)]
        if table.rows:
            lines += [f"  {line}" for line in _aligned([table.header, *table.rows])]
        lines += [f"  {safe_text(note)}" for note in table.notes]
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def to_html(tables: Sequence[Table], name: str) -> str:
    """One self-contained page, the headline first."""
    ordered = sorted(tables, key=lambda t: not t.title.startswith(("Headline", "Gate")))
    title = f"Audit of the verifier {_escaped(name)}"
    parts = [f"<h1>{title}</h1>", *(_section(table) for table in ordered)]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f"<title>{title}</title><style>{_STYLE}</style></head>\n<body>\n"
        + "\n".join(parts)
        + "\n</body></html>\n"
    )


def to_json(report: Report, gate: Sequence[TermResult]) -> str:
    """Everything, with NaN as null."""
    tree = {
        "schema_version": JSON_VERSION,
        **asdict(report),
        "headline_text": headline_text(report),
        "figures": figures(report),
        "gate": [
            {**asdict(result.term), "measured": result.measured, "holds": result.holds}
            for result in gate
        ],
    }
    return json.dumps(nulls(tree), indent=2, ensure_ascii=True)


def nulls(value: object) -> object:
    """The same tree with null for every number that is not finite."""
    if isinstance(value, Mapping):
        return {key: nulls(child) for key, child in value.items()}
    if isinstance(value, list | tuple):
        return [nulls(child) for child in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    cells = [[safe_text(cell) for cell in row] for row in rows]
    widths = [max(cell_len(row[i]) for row in cells) for i in range(len(cells[0]))]
    return [
        "  ".join(
            cell + " " * (width - cell_len(cell)) for cell, width in zip(row, widths, strict=True)
        ).rstrip()
        for row in cells
    ]


def _section(table: Table) -> str:
    is_head = table.title.startswith(("Headline", "Gate"))
    parts = [f"<h2>{_escaped(table.title)}</h2>"]
    if table.rows:
        head = "".join(f"<th>{_escaped(name)}</th>" for name in table.header)
        body = "\n".join(f"<tr>{''.join(_cell(cell) for cell in row)}</tr>" for row in table.rows)
        parts.append(f"<table><thead><tr>{head}</tr></thead><tbody>\n{body}\n</tbody></table>")
    css = ' class="head"' if is_head else ""
    parts += [f"<p{css}>{_escaped(note)}</p>" for note in table.notes]
    return "\n".join(parts)


def _cell(text: str) -> str:
    css = ' class="bad"' if text in _BAD else ""
    return f"<td{css}>{_escaped(text)}</td>"


def _escaped(text: str) -> str:
    return html.escape(safe_text(text))
