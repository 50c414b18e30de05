"""Labelled completions in JSON lines: the verifier's own `cases.jsonl`, or a person's file.

A row has `text` (or `completion`, `response`), `reference` (or `gold`, `answer`, `ground_truth`,
`solution`) and `label`: true when the completion should be accepted. Optional: `kind`, `policy`,
`options`, `weight`, `note`, `id`, and `question_id` or `question` (or `prompt`, `problem`), by
which rows of one question are kept together. A row whose label is null is left out and counted.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from grpo_cli.audit.rows import Gold, Row, Stratum
from grpo_cli.errors import GrpoError, Problem, Span, error

TEXT_KEYS = ("text", "completion", "response")
REFERENCE_KEYS = ("reference", "gold", "answer", "ground_truth", "solution")
LABEL_KEYS = ("label", "expected")
QUESTION_KEYS = ("question", "prompt", "problem")
_MAX_SHOWN = 5


@dataclass(frozen=True, slots=True)
class Cases:
    """The rows of one file, and the distinct golds among them."""

    rows: tuple[Row, ...]
    golds: tuple[Gold, ...]
    unlabelled: int = 0


class _BadRow(ValueError):
    """A row that cannot be used; the text says why."""


def read_cases(path: Path, stratum: Stratum) -> Cases:
    """Every labelled row of a file.

    Raises:
        GrpoError: GR211 with file and line of each bad row (the first five), or when none is left.
    """
    try:
        lines = path.read_bytes().decode("utf-8-sig").split("\n")
    except OSError as problem:
        raise error("GR211", f"cannot read {path}: {problem.strerror}") from None
    except UnicodeDecodeError:
        raise error("GR211", f"{path} is not UTF-8 text", hint="pass a .jsonl file") from None
    rows: list[Row] = []
    golds: dict[tuple[str, str], Gold] = {}
    problems: list[Problem] = []
    unlabelled = 0
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            fields = json.loads(line)
            if not isinstance(fields, dict):
                raise _BadRow("a row must be a JSON object")
            row = _row(fields, f"{path.name}:{number}", stratum)
        except (_BadRow, ValueError, RecursionError) as bad:
            what = f"not JSON: {bad.msg}" if isinstance(bad, json.JSONDecodeError) else str(bad)
            column = bad.colno if isinstance(bad, json.JSONDecodeError) else 1
            span = Span(str(path), number, column, 1, line)
            problems.append(Problem("GR211", f"{path.name}, line {number}: {what}", span))
            continue
        if row is None:
            unlabelled += 1
            continue
        rows.append(row)
        question = _optional_text(fields, QUESTION_KEYS)
        choices = fields.get("choices")
        texts = tuple(map(str, choices)) if isinstance(choices, list) else ()
        gold = Gold(row.problem, row.reference, question, texts)
        golds.setdefault((question or "", row.reference), gold)
    if problems:
        raise GrpoError(*problems[:_MAX_SHOWN])
    if not rows:
        raise error(
            "GR211",
            f"{path} has no labelled row"
            + (f": the label of all {unlabelled} is null" if unlabelled else ""),
            hint='set "label" to true (should be accepted) or false in each row',
        )
    return Cases(tuple(rows), tuple(golds.values()), unlabelled)


def _row(fields: Mapping[str, object], where: str, stratum: Stratum) -> Row | None:
    text = _required(fields, TEXT_KEYS)
    reference = _required(fields, REFERENCE_KEYS)
    label = next((fields[k] for k in LABEL_KEYS if k in fields), _MISSING)
    if label is _MISSING:
        raise _BadRow('no "label" (true when the completion should be accepted)')
    if label is None:
        return None
    if not isinstance(label, bool) and label not in (0, 1):
        raise _BadRow(f'"label" is {json.dumps(label)}, not true or false')
    options = fields.get("options", {})
    if not isinstance(options, dict) or not all(isinstance(v, str) for v in options.values()):
        raise _BadRow('"options" is not an object of texts (texts of choices go in "choices")')
    weight = fields.get("weight", 1.0)
    if isinstance(weight, bool) or not isinstance(weight, int | float) or not weight > 0:
        raise _BadRow(f'"weight" is {json.dumps(weight)}, not a number above 0')
    row_id = str(fields.get("id", where))
    question = fields.get("question_id")
    problem = str(question) if question is not None else _optional_text(fields, QUESTION_KEYS)
    return Row(
        id=row_id,
        problem=problem if problem is not None else row_id,
        kind=str(fields.get("kind") or "all"),
        text=text,
        reference=reference,
        accept=bool(label),
        stratum=stratum,
        policy=fields.get("policy") is True,
        options=options,
        weight=float(weight),
        note=str(fields.get("note") or ""),
    )


_MISSING = object()


def _required(fields: Mapping[str, object], names: tuple[str, ...]) -> str:
    for name in names:
        if name in fields:
            value = fields[name]
            if isinstance(value, bool) or not isinstance(value, str | int | float):
                raise _BadRow(f'"{name}" is {type(value).__name__}, not text')
            return str(value)
    raise _BadRow(f'no "{names[0]}" (nor {", ".join(names[1:])})')


def _optional_text(fields: Mapping[str, object], names: tuple[str, ...]) -> str | None:
    return next((v for name in names if isinstance(v := fields.get(name), str)), None)
