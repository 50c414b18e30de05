"""Run a plan in front of somebody: the live table or lines, then the comparison. No torch."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.live import Live
from rich.text import Text

from grpo_cli.ablate.plan import Plan
from grpo_cli.ablate.run import Ended, Options, run_plan
from grpo_cli.ablate.watch import Board, CellState, Ticker, record_json
from grpo_cli.checkpoint import replace_file
from grpo_cli.compare import Comparison, compare
from grpo_cli.compare.read import read_targets
from grpo_cli.errors import GrpoError
from grpo_cli.mlflow_ablation import REPORT
from grpo_cli.progress import Style
from grpo_cli.report import safe_text
from grpo_cli.types import RunStatus, StepRecord

if TYPE_CHECKING:
    from rich.console import RenderableType


class Screen:
    """What a person or a script sees while the cells train."""

    def __init__(self, style: Style, console: Console) -> None:
        self._style = style
        self._console = console
        self._live: Live | None = None
        self._ticker: Ticker | None = None
        self._shown_notes = 0

    def notice(self, text: str) -> None:
        """Something a person should read."""
        if self._style in ("live", "plain"):
            self._print(Text(safe_text(text)))

    def __call__(self, board: Board, new: Sequence[tuple[CellState, StepRecord]]) -> None:
        """Show what is new."""
        if self._ticker is None:
            self._ticker = Ticker(board)
            list(self._ticker.lines([]))  # what was there before needs no line
        if self._style == "json":
            for cell, record in new:
                self._out(record_json(cell, record))
        elif self._style == "plain":
            for line in self._ticker.lines(new):
                self._print(Text(line))
            for note in board.notes[self._shown_notes :]:
                self._print(Text(safe_text(note)))
            self._shown_notes = len(board.notes)
        elif self._style == "live":
            if self._live is None:
                self._live = Live(board, console=self._console, refresh_per_second=4)
                self._live.start()
            self._live.update(board)

    def close(self) -> None:
        """Leave the table as it last was."""
        if self._live:
            self._live.stop()
            self._live = None

    def _print(self, what: RenderableType) -> None:
        try:
            self._console.print(what, soft_wrap=True)
        except BrokenPipeError:
            self._style = "quiet"

    def _out(self, line: str) -> None:
        try:
            print(line, flush=True)  # noqa: T201 this is the data
        except BrokenPipeError:
            # A viewer that goes away must not end the experiment.
            self._style = "quiet"
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def run_and_show(folder: Path, plan: Plan, options: Options, style: Style, console: Console) -> int:
    """Run the plan and print the comparison; the exit code.

    0: every cell is done. 1: some failed. 3: something kept cells from training. 130: stopped.
    """
    screen = Screen(style, console)
    found: list[Comparison] = []

    def report() -> None:
        try:
            found.append(write_report(folder, options.root))
        except GrpoError as problem:
            screen.notice(f"no comparison: {problem}")

    try:
        ended = run_plan(folder, plan, options, screen, report, screen.notice)
    finally:
        screen.close()
    comparison = found[0] if found else None
    if style == "quiet":
        print(folder)  # noqa: T201 this is the data
    elif style == "json":
        print(json.dumps(_as_json(folder, ended, comparison)))  # noqa: T201 this is the data
    else:
        _show(folder, plan, options, ended, comparison)
    for problem in ended.problems:
        console.print(Text(f"error: {safe_text(problem)}", style="red"), soft_wrap=True)
    if ended.status is RunStatus.STOPPED:
        return 130
    if ended.status is not RunStatus.DONE:
        return 3
    return 1 if ended.failed else 0


def write_report(folder: Path, root: Path) -> Comparison:
    """Compare the cells, and leave the comparison in the ablation's folder.

    Raises:
        GrpoError: what `grpo compare` would say.
    """
    from grpo_cli.compare.html import as_html
    from grpo_cli.compare.text import as_json, as_markdown

    found = read_targets([str(folder)], root)
    comparison = compare(found.runs, found.plans)
    report = folder / REPORT
    report.mkdir(exist_ok=True)
    for name, text in (
        ("comparison.json", as_json(comparison)),
        ("comparison.md", as_markdown(comparison)),
        ("comparison.html", as_html(comparison)),
    ):
        replace_file(report / name, text.encode())
    return comparison


def _show(
    folder: Path, plan: Plan, options: Options, ended: Ended, comparison: Comparison | None
) -> None:
    out = Console(highlight=False)
    if comparison is not None:
        from grpo_cli.compare.text import as_text

        out.print(Text(as_text(comparison)), soft_wrap=True)
    if ended.status is RunStatus.STOPPED:
        out.print(Text("stopped; the same command runs what is missing"))
    for cell in ended.failed:
        reason = safe_text(cell.reason or "", 300)
        out.print(Text(f"{cell.cell.arm} s{cell.cell.seed} failed: {reason}"), soft_wrap=True)
    where = Path(os.path.relpath(folder)) if folder.is_absolute() else folder
    rows = [("cells", f"{ended.num_done} of {ended.num_cells} done in {ended.seconds:.0f} s")]
    rows += [("layout", layout.why) for layout in ended.layouts]
    rows += [("ablation", str(where))]
    if comparison is not None:
        rows += [("report", str(where / REPORT / "comparison.html"))]
    if ended.mirror:
        rows += [("MLflow", ended.mirror.summary)]
    for label, value in rows:
        out.print(Text(f"{label:<9} {safe_text(value)}"), soft_wrap=True)
    if comparison is not None:
        more = f"grpo compare {shlex.quote(plan.name)} --metric eval/mean_length"
        out.print(Text(f"\n  {more}", style="dim"), soft_wrap=True)


def _as_json(folder: Path, ended: Ended, comparison: Comparison | None) -> dict[str, object]:
    from grpo_cli.compare.text import as_json

    return {
        "schema": 1,
        "type": "summary",
        "ablation": str(folder),
        "status": ended.status,
        "done": ended.num_done,
        "cells": ended.num_cells,
        "failed": [
            {"arm": c.cell.arm, "seed": c.cell.seed, "reason": c.reason} for c in ended.failed
        ],
        "seconds": round(ended.seconds, 1),
        "layouts": [layout.why for layout in ended.layouts],
        "problems": list(ended.problems),
        "comparison": None if comparison is None else json.loads(as_json(comparison)),
    }
