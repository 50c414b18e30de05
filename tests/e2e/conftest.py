"""Small real runs: the shipped model and task with tiny budgets."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from grpo_cli.progress import Progress
from grpo_cli.types import StepRecord

SMALL = (
    "sampling.prompts_per_step=4",
    "sampling.group_size=4",
    "eval.num_questions=6",
    "eval.samples_per_question=2",
    "eval.every=4",
    "checkpoint.every=3",
)


def grpo(*args: str, cwd: Path, timeout: float = 120, **env: str) -> subprocess.CompletedProcess:
    """`grpo ARGS` as a real process; its runs folder is `cwd/runs`.

    No tracker unless `env` names one: importing MLflow costs seconds of CPU.
    """
    clean = {
        k: v for k, v in os.environ.items() if not k.startswith(("MLFLOW_", "GRPO_", "COLUMNS"))
    }
    return subprocess.run(
        [sys.executable, "-m", "grpo_cli", *args],
        cwd=cwd,
        env={**clean, "NO_COLOR": "1", "MLFLOW_TRACKING_URI": "none", **env},
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def small_run(steps: int, *more: str) -> list[str]:
    """Arguments of a `grpo train` with little to do."""
    sets = [f"optim.steps={steps}", *SMALL, *more]
    return ["train", "dapo", *(part for s in sets for part in ("--set", s))]


def fingerprint(run: Path) -> dict[str, object]:
    """What must be the same bits in two runs: weights, metrics without timings, completions."""
    metrics = []
    for line in (run / "metrics.jsonl").read_text().splitlines():
        record = json.loads(line)
        record.pop("unix_ms")
        record["scalars"] = {
            k: v for k, v in record["scalars"].items() if not k.startswith("time/")
        }
        metrics.append(record)
    files = [
        *sorted((run / "rollouts").glob("*")),
        *sorted((run / "eval").glob("*")),
        *sorted((run / "adapter").glob("*")),
        run / "adapter" / ".." / "optimizer.safetensors",
    ]
    return {
        "metrics": metrics,
        **{f.name: hashlib.sha256(f.read_bytes()).hexdigest() for f in files},
    }


@contextmanager
def interrupted_after(step: int) -> Iterator[None]:
    """Ctrl-C in this process once the step is on record."""
    record = Progress.record

    def interrupted(self: Progress, arm: object, found: StepRecord) -> None:
        record(self, arm, found)  # type: ignore[arg-type]
        if found.step == step:
            raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Progress, "record", interrupted)
        yield


def only_run(cwd: Path) -> Path:
    """The one run folder below `cwd/runs`."""
    (found,) = (cwd / "runs").glob("*/*/s*-*")
    return found


@pytest.fixture(scope="session")
def whole_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The working folder of a finished 6-step run."""
    cwd = tmp_path_factory.mktemp("whole")
    done = grpo(*small_run(6), cwd=cwd)
    assert done.returncode == 0, done.stderr
    return cwd
