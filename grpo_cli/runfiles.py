"""Reading a run folder: its info, state, metrics, rollouts and evaluations.

Everything here also works on a run that another process is writing, and changes nothing on disk.
`grpo_cli.rundir` writes what is read here. Must not import torch or mlflow.
"""

from __future__ import annotations

import gzip
import json
import math
import posixpath
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from grpo_cli.errors import GrpoError, error
from grpo_cli.runlock import is_held
from grpo_cli.types import EvalRow, Finish, RunStatus, Status, StepRecord

SUPERSEDED = ".superseded-"
"""What a run folder that was begun again is marked with."""

_METRIC = re.compile(r"[A-Za-z0-9_.\- :/]{1,250}")


@dataclass(frozen=True, slots=True)
class RunInfo:
    """`run.json`. Times are ISO 8601 in UTC; `step` is the newest step on record, -1 before any.

    Example:
        RunInfo(run_id="9f0c...", recipe="dapo", name="dapo", seed=0, recipe_hash="51ab...",
                status=RunStatus.DONE, attempt=1, step=200, started="2026-11-29T10:00:00+00:00",
                ended="2026-11-29T10:02:11+00:00", reason=None)
    """

    run_id: str
    recipe: str
    name: str
    seed: int
    recipe_hash: str
    status: RunStatus
    attempt: int
    step: int
    started: str
    ended: str | None
    reason: str | None


def find_runs(root: Path) -> list[Path]:
    """Every run folder under `root`, sorted, with the cells of ablations; no superseded ones."""
    patterns = ("*/*/s*-*/run.json", "ablations/*/*/s*-*/run.json")
    found = (path.parent for pattern in patterns for path in root.glob(pattern))
    return sorted(path for path in found if SUPERSEDED not in path.name)


def read_info(run: Path) -> RunInfo:
    """The run's `run.json`.

    Raises:
        GrpoError: GR206 when there is none, GR204 when it cannot be read.
    """
    path = run / "run.json"
    try:
        fields = json.loads(path.read_bytes())
        return RunInfo(**{**fields, "status": RunStatus(fields["status"])})
    except (FileNotFoundError, NotADirectoryError) as problem:
        raise error("GR206", f"{run} is not a run folder: it has no run.json") from problem
    except (ValueError, TypeError, KeyError) as problem:
        raise damaged(path, "it cannot be read") from problem


def run_state(run: Path, info: RunInfo) -> str:
    """The status, or `interrupted` for a run that nobody runs any more and that did not end."""
    if info.status is RunStatus.RUNNING and not is_held(run):
        return "interrupted"
    return info.status.value


def read_metrics(run: Path) -> list[StepRecord]:
    """The step records, oldest first. A last line that a crash cut short is left out.

    Raises:
        GrpoError: GR204 when another line cannot be read.
    """
    path = run / "metrics.jsonl"
    return [parse_record(path, n, line) for n, line in enumerate(metric_lines(path), start=1)]


def read_rollouts(run: Path, step: int) -> list[dict[str, Any]]:
    """The rows of one step's rollouts; raises FileNotFoundError when there are none."""
    with gzip.open(run / "rollouts" / f"step-{step:06d}.jsonl.gz", "rt") as file:
        return [json.loads(line) for line in file]


def eval_fields(row: EvalRow) -> dict[str, Any]:
    """A row as it is written; the fields of a verdict on the own answer only where there is one."""
    fields = asdict(row)
    if row.self_verdict is None:
        del fields["self_verdict"], fields["p_right"]
    return fields


def read_eval(run: Path, step: int) -> tuple[EvalRow, ...]:
    """The rows of one step's evaluation; raises FileNotFoundError when there was none."""
    rows = []
    path = run / "eval" / f"step-{step:06d}.jsonl"
    with open(path) as file:
        for number, line in enumerate(file, start=1):
            try:
                row = json.loads(line)
                score = math.nan if row["score"] is None else float(row["score"])
                if row.get("p_right", 0) is None:
                    row["p_right"] = math.nan
                kinds = {"status": Status(row["status"]), "finish": Finish(row["finish"])}
                rows.append(EvalRow(**{**row, **kinds, "score": score}))
            except (ValueError, KeyError, TypeError) as problem:
                raise error(
                    "GR204",
                    f"{path}:{number} is not a row of an evaluation: {problem}",
                    hint="put the file back, or pass --restart to begin a new run",
                ) from problem
    return tuple(rows)


def eval_steps(run: Path) -> list[int]:
    """The steps with an evaluation, in order."""
    return [step for step, _ in step_files(run / "eval")]


def check_metric_name(name: str) -> None:
    """Raise ValueError for a metric name that MLflow refuses, such as `pass@1` or `a//b`."""
    legal = _METRIC.fullmatch(name) and posixpath.normpath(name) == name
    if not legal or name == "." or name.startswith(("/", "..")):
        raise ValueError(f"{name!r} is not a legal MLflow metric name")


def damaged(path: Path, what: str) -> GrpoError:
    """GR204 for a file of the run folder."""
    return error(
        "GR204",
        f"{path} is damaged: {what}",
        hint="bring the file back from a copy, or pass --restart to begin the run again",
    )


def metric_lines(path: Path) -> list[bytes]:
    """The lines with their ends; a last one that is not whole JSON is left out."""
    lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
    if lines and not _is_whole(lines[-1]):
        lines.pop()
    return lines


def _is_whole(line: bytes) -> bool:
    try:
        return line.endswith(b"\n") and isinstance(json.loads(line), dict)
    except ValueError:
        return False


def parse_record(path: Path, number: int, line: bytes) -> StepRecord:
    """The record of one line of `metrics.jsonl`; null is NaN."""
    try:
        fields = json.loads(line)
        scalars = {k: math.nan if v is None else float(v) for k, v in fields["scalars"].items()}
        return StepRecord(int(fields["step"]), int(fields["unix_ms"]), scalars)
    except (ValueError, KeyError, TypeError, AttributeError) as problem:
        raise damaged(path, f"line {number} is not a step record") from problem


def step_files(folder: Path) -> list[tuple[int, Path]]:
    """Steps and paths of the `step-*.jsonl` files of a folder, in order."""
    named = ((re.fullmatch(r"step-(\d{6,})\.jsonl(\.gz)?", p.name), p) for p in folder.glob("*"))
    return sorted((int(match[1]), path) for match, path in named if match)
