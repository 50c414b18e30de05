"""The rows of an evaluation on disk: appended a block at a time, taken up again by the same ask.

A row is one sampled answer. The folder is content-addressed: `asked.json` holds everything that
decides the rows, so finished rows are used again only where they would come out the same.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from grpo_cli.checkpoint import disk_errors, json_line, replace_file
from grpo_cli.errors import error
from grpo_cli.types import EvalRow, Finish, Status, Verdict

ROWS = "rows.jsonl"
ASKED = "asked.json"
SUMMARY = "summary.json"


@dataclass(frozen=True, slots=True)
class Sampled:
    """One answer to one question. `score` is NaN without a verdict.

    Example:
        Sampled("3f1c", "3f1c", sample=0, score=1.0, status=Status.OK, parsed="16",
                num_tokens=31, finish=Finish.STOP, text="...#16")
    """

    question_id: str
    cluster: str
    sample: int
    score: float
    status: Status
    parsed: str | None
    num_tokens: int
    finish: Finish
    text: str

    @property
    def missing(self) -> bool:
        """Whether the verifier could not do its work."""
        return self.status in (Status.TIMEOUT, Status.ERROR)


@dataclass(frozen=True, slots=True)
class Cell:
    """One policy asked in one wording."""

    policy: str
    template: str


Rows = dict[Cell, list[Sampled]]


def sampled(row: EvalRow, verdict: Verdict) -> Sampled:
    """An evaluation's row with the answer that the verifier read."""
    return Sampled(
        row.question_id,
        row.cluster,
        row.sample,
        row.score,
        row.status,
        verdict.parsed,
        row.num_tokens,
        row.finish,
        row.text,
    )


def digest(asked: Mapping[str, Any]) -> str:
    """SHA-256 of what was asked (hex)."""
    text = json.dumps(asked, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


class Store:
    """The folder of one evaluation."""

    def __init__(self, folder: Path, asked: Mapping[str, Any], *, restart: bool) -> None:
        """Take up the folder, or begin it.

        Raises:
            GrpoError: GR208 when it holds another evaluation, GR303 when it cannot be written.
        """
        self.folder = folder
        self._path = folder / ROWS
        with disk_errors(folder / ASKED):
            folder.mkdir(parents=True, exist_ok=True)
        if restart:
            for name in (ROWS, ASKED, SUMMARY):
                (folder / name).unlink(missing_ok=True)
        elif any((folder / name).exists() for name in (ASKED, ROWS)):
            self._check(asked)
        replace_file(folder / ASKED, (json.dumps(asked, indent=1) + "\n").encode())
        self._rows: dict[Cell, list[Sampled]] = {}
        for cell, row in self._read():
            self._rows.setdefault(cell, []).append(row)

    def _check(self, asked: Mapping[str, Any]) -> None:
        try:
            then = json.loads((self.folder / ASKED).read_bytes())
        except (OSError, ValueError):
            then = {}
        if then == json.loads(json.dumps(asked)):
            return
        keys = {*then, *asked} if isinstance(then, dict) else set(asked)
        changed = sorted(
            k for k in keys if not isinstance(then, dict) or then.get(k) != asked.get(k)
        )
        raise error(
            "GR208",
            f"{self.folder} holds another evaluation: {', '.join(changed)} differ",
            hint="choose another --out, or pass --restart to begin it again",
        )

    def finished(self, cell: Cell, wanted: Sequence[tuple[str, int]]) -> list[Sampled]:
        """The rows of a cell so far, as far as they are those of `wanted` (question, sample)."""
        rows = self._rows.get(cell, [])
        count = 0
        for row, place in zip(rows, wanted, strict=False):
            if (row.question_id, row.sample) != place:
                break
            count += 1
        return rows[:count]

    def keep(self, cells: Mapping[Cell, Sequence[Sampled]]) -> None:
        """Make the file hold these rows and no other; nothing is written when it does already."""
        if {c: list(r) for c, r in cells.items() if r} == self._rows and self._whole:
            return
        lines = (line(cell, row) for cell, rows in cells.items() for row in rows)
        replace_file(self._path, b"".join(lines))

    def append(self, cell: Cell, rows: Sequence[Sampled]) -> None:
        """Add the rows of a block, durably."""
        with disk_errors(self._path), open(self._path, "ab", buffering=0) as file:
            file.write(b"".join(line(cell, row) for row in rows))
            os.fsync(file.fileno())

    def _read(self) -> list[tuple[Cell, Sampled]]:
        found = []
        self._whole = True
        raw = self._path.read_bytes().split(b"\n") if self._path.exists() else [b""]
        for text in raw[:-1]:
            try:
                found.append(_parse(text))
            except (ValueError, KeyError, TypeError, AttributeError):
                self._whole = False
                break  # what a crash left; the rest is made again
        self._whole &= not raw[-1]
        return found


def write_summary(folder: Path, document: str) -> None:
    """Put the report's JSON document beside the rows."""
    replace_file(folder / SUMMARY, f"{document}\n".encode())


def line(cell: Cell, row: Sampled) -> bytes:
    """A row as one line of JSON; a NaN score is null."""
    return json_line({**asdict(cell), **asdict(row)})


def _parse(text: bytes) -> tuple[Cell, Sampled]:
    fields = json.loads(text)
    cell = Cell(fields.pop("policy"), fields.pop("template"))
    fields["score"] = math.nan if fields["score"] is None else float(fields["score"])
    fields |= {"status": Status(fields["status"]), "finish": Finish(fields["finish"])}
    return cell, Sampled(**fields)
