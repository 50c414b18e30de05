"""`grpo runs`: what it prints, how it finds a run, and how it ends."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from grpo_cli import track
from grpo_cli.cli.runs import app, resolve_run
from grpo_cli.errors import GrpoError, error
from grpo_cli.recipe.schema import Recipe
from grpo_cli.rundir import RunDir
from grpo_cli.track import SyncResult
from grpo_cli.types import RunStatus, StepRecord

RECIPE = Recipe.model_validate(
    {
        "setup": "tiny",
        "objective": {"kind": "clip"},
        "optim": {"lr": 1e-3, "steps": 3},
        "model": {"id": "tiny"},
        "task": {"kind": "arithmetic"},
        "verifier": {"name": "exact"},
        "sampling": {"prompts_per_step": 2, "group_size": 2, "max_tokens": 8},
        "eval": {"num_questions": 2, "samples_per_question": 1},
    }
)


def open_run(root: Path, name: str = "arm", seed: int = 0) -> RunDir:
    return RunDir.open(
        root,
        recipe_name="dapo",
        name=name,
        seed=seed,
        recipe=RECIPE,
        origins={},
        sources={},
        command=["grpo", "train"],
        identity={},
    )


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Three runs: done, interrupted, and damaged."""
    folder = tmp_path / "runs"
    with open_run(folder) as run:
        run.append(StepRecord(0, 1, {"eval/accuracy": 0.25}))
        run.append(StepRecord(1, 2, {"reward/mean": 0.5, "bad": float("nan")}))
        run.set_status(RunStatus.DONE, "as\x1b[31m planned")
    open_run(folder, seed=1).close()
    with open_run(folder, name="other") as run:
        (run.path / "run.json").write_text("{")
    return folder


def invoke(*args: str) -> Any:
    return CliRunner().invoke(app, list(args), prog_name="grpo runs")


def test_ls_is_a_table(root: Path) -> None:
    result = invoke("ls", "--runs-dir", str(root))
    assert result.exit_code == 0
    header, done, interrupted, damaged = result.stdout.splitlines()
    assert header.split() == ["RUN", "STATUS", "STEP", "SEED", "ACCURACY"]
    assert done.split()[1:] == ["done", "1", "0", "0.250"]
    assert interrupted.split()[1:] == ["interrupted", "-", "1", "-"]
    assert damaged.split()[1] == "damaged"


def test_ls_as_json_and_as_paths(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = json.loads(invoke("ls", "--runs-dir", str(root), "--json").stdout)
    assert [row["status"] for row in rows] == ["done", "interrupted", "damaged"]
    assert rows[0]["accuracy"] == 0.25
    monkeypatch.setenv("GRPO_RUNS_DIR", str(root))
    assert invoke("ls", "-q").stdout.splitlines() == [row["path"] for row in rows]


def test_ls_shows_a_run_that_is_held_as_running(root: Path) -> None:
    with open_run(root, seed=2):
        rows = json.loads(invoke("ls", "--runs-dir", str(root), "--json").stdout)
        assert [r["status"] for r in rows if r["seed"] == 2] == ["running"]


def test_no_runs_is_no_error(tmp_path: Path) -> None:
    for command in ("ls", "sync"):
        result = invoke(command, "--runs-dir", str(tmp_path / "none"))
        assert result.exit_code == 0
        assert "no runs in" in result.stdout
    assert invoke("ls", "--runs-dir", str(tmp_path / "none"), "--json").stdout == "[]\n"
    assert not (tmp_path / "none").exists()


def test_show(root: Path) -> None:
    result = invoke("show", "arm/s0", "--runs-dir", str(root))
    assert result.exit_code == 0
    assert "reward/mean  0.5" in result.stdout
    assert "status       done" in result.stdout
    assert "\x1b" not in result.stdout
    facts = json.loads(invoke("show", "arm/s0", "--runs-dir", str(root), "--json").stdout)
    assert facts["metrics"] == {"reward/mean": 0.5, "bad": None}
    assert facts["status"] == "done"


def test_a_run_is_found_by_path_or_by_a_unique_part(root: Path) -> None:
    path = resolve_run("arm/s1", root)
    assert path.name.startswith("s1-")
    assert resolve_run(str(path), Path("nowhere")) == path
    with pytest.raises(GrpoError, match="names 3 runs"):
        resolve_run("dapo", root)
    with pytest.raises(GrpoError) as caught:
        resolve_run("dapo/amr/s0", root)
    assert caught.value.problems[0].code == "GR206"
    assert "did you mean 'dapo/arm/s" in str(caught.value.problems[0].hint)


def test_sync_sends_all_or_some_and_goes_on_after_a_busy_one(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.rmtree(root / "dapo" / "other")
    seen = []

    def sync(run: Path, uri: str) -> SyncResult:
        seen.append((run.name[:2], uri))
        if run.name.startswith("s0"):
            raise error("GR203", "busy")
        return SyncResult(new=2, sent=5, total=5)

    monkeypatch.setattr(track, "sync", sync)
    result = invoke("sync", "--runs-dir", str(root), "--tracking-uri", "http://u:p@h:1")
    assert result.exit_code == 0, result.output
    busy, sent = result.stdout.splitlines()
    assert "skipped" in busy
    assert sent.endswith("2 steps sent, 5 of 5 there")
    assert result.stderr == "to http://h:1\n"
    assert seen == [("s0", "http://u:p@h:1"), ("s1", "http://u:p@h:1")]
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    invoke("sync", "arm/s1", "--runs-dir", str(root))
    assert seen[2:] == [("s1", f"sqlite:///{root}/mlflow.db")]


def test_sync_to_a_dead_tracker_is_gr207(root: Path) -> None:
    result = invoke(
        "sync", "arm/s0", "--runs-dir", str(root), "--tracking-uri", "http://127.0.0.1:9"
    )
    assert isinstance(result.exception, GrpoError)
    assert result.exception.problems[0].code == "GR207"
    assert result.exception.exit_code == 2


@pytest.mark.parametrize("command", ["ls", "show", "sync"])
def test_help_has_examples(command: str) -> None:
    result = invoke(command, "--help")
    assert result.exit_code == 0
    assert f"grpo runs {command}" in result.stdout
