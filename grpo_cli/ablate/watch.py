"""The state of an ablation, read from its run folders, and the live table of it.

Works the same in the process that runs the ablation and in another terminal. Must not import torch.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderResult
from rich.table import Table
from rich.text import Text

from grpo_cli.ablate.plan import Cell, Outline
from grpo_cli.errors import GrpoError
from grpo_cli.progress import sparkline, step_json
from grpo_cli.report import safe_text
from grpo_cli.runfiles import RunInfo, parse_record, read_info, run_state
from grpo_cli.types import StepRecord

_CURVE = 16
COLUMNS = (
    "ARM",
    "SEEDS",
    "STEP",
    "REWARD",
    "HELD-OUT",
    "ENTROPY",
    "RIGHT/WRONG",
    "ZERO-VAR",
    "REWARD, HELD-OUT",
)

_SPARE = (8, 5, 6, 7)
"""Columns that a narrow terminal does without, in this order."""


@dataclass(slots=True)
class CellState:
    """What is known of one cell. `state` is `waiting` before it has a folder."""

    cell: Cell
    path: Path
    steps: int
    state: str = "waiting"
    reason: str | None = None
    records: list[StepRecord] = field(default_factory=list)
    _read: int = 0

    @property
    def step(self) -> int:
        """The newest step on record, -1 before any."""
        return self.records[-1].step if self.records else -1

    def refresh(self) -> list[StepRecord]:
        """Read what is new; the new records."""
        try:
            info: RunInfo = read_info(self.path)
            self.state, self.reason = run_state(self.path, info), info.reason
        except (GrpoError, OSError):
            return []
        metrics = self.path / "metrics.jsonl"
        size = metrics.stat().st_size if metrics.exists() else 0
        if size < self._read:  # a resume set some steps aside
            self.records, self._read = [], 0
        if size == self._read:
            return []
        with open(metrics, "rb") as file:
            file.seek(self._read)
            lines = file.read().splitlines(keepends=True)
        new = []
        for line in lines:
            if not line.endswith(b"\n"):
                break  # still being written
            try:
                new.append(parse_record(metrics, 0, line))
            except GrpoError:
                break
            self._read += len(line)
        self.records += new
        return new

    def latest(self, metric: str) -> float:
        """The newest value of a metric; NaN when there is none."""
        found = (r.scalars[metric] for r in reversed(self.records) if metric in r.scalars)
        return next(found, math.nan)


class Board:
    """All cells of an ablation, as they stand."""

    def __init__(self, folder: Path, outline: Outline) -> None:
        self._outline = outline
        self.phase = ""
        self.notes: list[str] = []
        self.cells = [
            CellState(cell, folder / cell.run, outline.steps[cell.arm]) for cell in outline.cells
        ]

    def refresh(self) -> list[tuple[CellState, StepRecord]]:
        """Read all cells again; what is new."""
        return [(cell, record) for cell in self.cells for record in cell.refresh()]

    @property
    def num_done(self) -> int:
        """Cells that reached their last step."""
        return sum(cell.state == "done" for cell in self.cells)

    @property
    def num_open(self) -> int:
        """Cells that have neither finished nor failed."""
        return sum(cell.state not in ("done", "failed") for cell in self.cells)

    def rows(self) -> list[tuple[str, ...]]:
        """One row of text per arm; a number is the mean over its seeds' newest values."""
        return [self._row(name) for name in self._outline.steps]

    def _row(self, name: str) -> tuple[str, ...]:
        cells = [cell for cell in self.cells if cell.cell.arm == name]
        done = sum(cell.state == "done" for cell in cells)
        failed = sum(cell.state == "failed" for cell in cells)
        steps = sorted({max(cell.step, 0) for cell in cells})
        shown = str(steps[0]) if len(steps) == 1 else f"{steps[0]}-{steps[-1]}"

        def mean(metric: str, form: str, scale: float = 1) -> str:
            values = [v for c in cells if not math.isnan(v := c.latest(metric))]
            return form.format(scale * sum(values) / len(values)) if values else "-"

        lengths = (mean(f"completion/mean_length_{w}", "{:.0f}") for w in ("right", "wrong"))
        return (
            safe_text(name, 64) + (" *" if name == self._outline.control else ""),
            f"{done}/{len(cells)}" + (f" {failed} failed" if failed else ""),
            f"{shown}/{cells[0].steps}",
            mean("reward/mean", "{:+.2f}"),
            mean("eval/accuracy", "{:.1f} %", 100),
            mean("policy/entropy", "{:.2f}"),
            "/".join(lengths),
            mean("group/zero_variance_frac", "{:.0f} %", 100),
            f"{self._curve(cells, 'reward/mean')} {self._curve(cells, 'eval/accuracy')}".strip(),
        )

    @staticmethod
    def _curve(cells: Sequence[CellState], metric: str) -> str:
        by_step: dict[int, list[float]] = {}
        for cell in cells:
            for record in cell.records:
                value = record.scalars.get(metric, math.nan)
                if not math.isnan(value):
                    by_step.setdefault(record.step, []).append(value)
        means = [sum(values) / len(values) for _, values in sorted(by_step.items())]
        return sparkline(_thinned(means, _CURVE), _CURVE) if len(means) > 1 else ""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield self.table(options.max_width)

    def table(self, width: int) -> Group:
        """The arms and what is going on; columns that do not fit are left out."""
        rows = self.rows()
        widths = [max(cell_len(row[i]) for row in (COLUMNS, *rows)) for i in range(len(COLUMNS))]
        shown = list(range(len(COLUMNS)))
        for spare in _SPARE:
            if sum(widths[i] + 2 for i in shown) - 2 > width:
                shown.remove(spare)
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
        for i in shown:
            table.add_column(COLUMNS[i], no_wrap=True, overflow="ellipsis")
        for row in rows:
            table.add_row(*(Text(row[i]) for i in shown))
        total = len(self.cells)
        lines: list[Table | Text] = [table]
        if self._outline.control:  # not of a single run
            below = f"{self.num_done} of {total} cells done   * control   means over seeds"
            lines.append(Text(below, style="dim"))
        if self.phase:
            lines.append(Text(self.phase, style="dim"))
        lines += [Text(safe_text(note)) for note in self.notes[-3:]]
        return Group(*lines)


def record_line(cell: CellState, record: StepRecord) -> str:
    """A step as one line of a log."""
    get = record.scalars.get
    parts = [
        f"{safe_text(cell.cell.arm, 64)} s{cell.cell.seed}",
        f"step {record.step}/{cell.steps}",
    ]
    for label, metric, form, scale in (
        ("reward", "reward/mean", "{:+.2f}", 1),
        ("held-out", "eval/accuracy", "{:.1f} %", 100),
        ("entropy", "policy/entropy", "{:.2f}", 1),
        ("zero-variance", "group/zero_variance_frac", "{:.0f} %", 100),
    ):
        value = get(metric, math.nan)
        if not math.isnan(value):
            parts.append(f"{label} {form.format(scale * value)}")
    return "  ".join(parts)


def record_json(cell: CellState, record: StepRecord) -> str:
    """A step as one JSON object, with its arm and seed."""
    return json.dumps({**step_json(record), "arm": cell.cell.arm, "seed": cell.cell.seed})


class Ticker:
    """What is worth a line of its own when nothing can be redrawn."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self._states: dict[tuple[str, int], str] = {}

    def lines(self, new: Sequence[tuple[CellState, StepRecord]]) -> Iterator[str]:
        """Evaluations as they come, and cells that ended."""
        for cell, record in new:
            if "eval/accuracy" in record.scalars:
                yield record_line(cell, record)
        for cell in self._board.cells:
            key = (cell.cell.arm, cell.cell.seed)
            before, self._states[key] = self._states.get(key), cell.state
            if before not in (None, cell.state) and cell.state == "failed":
                yield (
                    f"{safe_text(cell.cell.arm, 64)} s{cell.cell.seed} failed: "
                    f"{safe_text(cell.reason or '', 200)}"
                )


def _thinned(values: Sequence[float], width: int) -> list[float]:
    """At most `width` values: means of equal stretches."""
    if len(values) <= width:
        return list(values)
    edges = [round(i * len(values) / width) for i in range(width + 1)]
    return [sum(values[a:b]) / (b - a) for a, b in itertools.pairwise(edges) if b > a]
