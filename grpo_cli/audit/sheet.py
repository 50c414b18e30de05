"""A sheet for labelling by hand: completions sampled from a run, read back with `--cases`.

Rows the verifier accepted and rows it rejected are drawn in equal number, as errors of either side
are else too rare to see; `weight` says how many completions of the run a row stands for, so that
the rates are those of the run. The verifier's own verdict is left out: whoever labels should not
see it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from grpo_cli.audit.rows import ACCEPT_AT
from grpo_cli.errors import error
from grpo_cli.runfiles import read_rollouts, step_files
from grpo_cli.seeds import seed63

SHEET_ROWS = 120


def write_sheet(run: Path, target: Path, *, rows: int = SHEET_ROWS) -> int:
    """Sample up to `rows` completions of a run into `target`; returns how many.

    The draw depends on the run's rollouts only, so it is the same each time.

    Raises:
        GrpoError: GR211 when the run has no rollouts or the file is there already.
    """
    if target.exists():
        raise error(
            "GR211",
            f"{target} is there already, perhaps with labels",
            hint=f"read it with --cases {target}, or move it away",
        )
    found = [
        {**row, "step": step, "place": index}
        for step, _ in step_files(run / "rollouts")
        for index, row in enumerate(read_rollouts(run, step))
    ]
    judged = [row for row in found if isinstance(row.get("score"), int | float)]
    if not judged:
        raise error("GR211", f"{run} has no rollouts with verdicts to sample from")
    sides = [
        [row for row in judged if (row["score"] >= ACCEPT_AT) is side] for side in (True, False)
    ]
    # A side with too few rows leaves its room to the other.
    small = min(len(side) for side in sides)
    counts = [min(len(side), max(rows // 2, rows - small)) for side in sides]
    drawn = [row for side, count in zip(sides, counts, strict=True) for row in _draw(side, count)]
    drawn.sort(key=lambda row: seed63("sheet", "order", str(row["step"]), str(row["place"])))
    lines = [json.dumps(row, ensure_ascii=False) for row in drawn_rows(drawn)]
    target.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return len(lines)


def drawn_rows(drawn: Sequence[Mapping[str, object]]) -> list[dict[str, object]]:
    """The rows as they stand in the sheet, with an empty label."""
    return [
        {
            "id": f"step-{row['step']}/{row['place']}",
            "question_id": row.get("prompt_id"),
            "question": _question(row.get("prompt")),
            "reference": row.get("reference"),
            "text": row.get("completion"),
            "label": None,
            "weight": row["weight"],
        }
        for row in drawn
    ]


def _question(prompt: object) -> str | None:
    """The last turn of a prompt."""
    if not isinstance(prompt, list) or not prompt or not isinstance(prompt[-1], dict):
        return None
    content = prompt[-1].get("content")
    return content if isinstance(content, str) else None


def _draw(side: Sequence[dict[str, object]], count: int) -> list[dict[str, object]]:
    def place(row: Mapping[str, object]) -> int:
        return seed63("sheet", "draw", str(row["step"]), str(row["place"]))

    chosen = sorted(side, key=place)[:count]
    return [{**row, "weight": round(len(side) / count, 6)} for row in chosen]
