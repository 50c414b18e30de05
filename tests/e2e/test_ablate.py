"""`grpo ablate` through real processes: a cell equals the run alone, kills change nothing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.e2e.conftest import SMALL, fingerprint, grpo

pytestmark = pytest.mark.slow  # several trainings each

SETS = tuple(
    part
    for setting in ("optim.steps=3", *SMALL, "eval.every=2", "checkpoint.every=2")
    for part in ("--set", setting)
)
NORM = ("ablate", "--axis", "std_norm", "--seeds", "2", "--name", "norm", "--processes", "2", *SETS)


def cells(cwd: Path, name: str) -> dict[tuple[str, int], Path]:
    """(arm, seed) -> the cell's run folder."""
    folder = cwd / "runs" / "ablations" / name
    plan = json.loads((folder / "plan.json").read_text())
    return {(c["arm"], c["seed"]): folder / c["run"] for c in plan["cells"]}


def prints(cwd: Path, name: str) -> dict[tuple[str, int], object]:
    return {cell: fingerprint(path) for cell, path in cells(cwd, name).items()}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The working folder of a finished ablation in two processes."""
    cwd = tmp_path_factory.mktemp("ablation")
    done = grpo(*NORM, cwd=cwd)
    assert done.returncode == 0, done.stderr
    assert "std_norm-group is the control" in done.stdout
    assert "6 of 6 cells" not in done.stderr
    return cwd


def test_an_ablation_leaves_a_plan_cells_and_a_comparison(whole: Path) -> None:
    folder = whole / "runs" / "ablations" / "norm"
    assert len(cells(whole, "norm")) == 6
    for path in cells(whole, "norm").values():
        assert json.loads((path / "run.json").read_text())["status"] == "done"
        env = json.loads((path / "env.json").read_text())
        assert (env["processes"], env["cells_together"], env["torch_threads"]) == (2, 3, 1)
    names = sorted(path.name for path in (folder / "report").iterdir())
    assert names == ["comparison.html", "comparison.json", "comparison.md"]
    found = json.loads((folder / "report" / "comparison.json").read_text())
    assert found["control"] == "std_norm-group"
    listed = grpo("runs", "ls", "-q", cwd=whole)
    assert len(listed.stdout.splitlines()) == 6


def test_a_cell_equals_the_run_alone_bit_for_bit(whole: Path, tmp_path: Path) -> None:
    alone = grpo(
        "train", "dapo", *SETS, "--set", "advantage.scale=none", "--seed", "1", cwd=tmp_path
    )
    assert alone.returncode == 0, alone.stderr
    (run,) = (tmp_path / "runs" / "dapo").glob("*/s1-*")
    assert fingerprint(run) == fingerprint(cells(whole, "norm")["std_norm-none", 1])


def test_neighbours_and_processes_change_no_bit(whole: Path, tmp_path: Path) -> None:
    args = [
        part if part != "2" or NORM[i - 1] != "--processes" else "1" for i, part in enumerate(NORM)
    ]
    done = grpo(*args, "--max-parallel", "2", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert prints(tmp_path, "norm") == prints(whole, "norm")


def test_the_same_command_again_trains_nothing(whole: Path) -> None:
    before = prints(whole, "norm")
    again = grpo(*NORM, "-q", cwd=whole)
    assert (again.returncode, again.stderr) == (0, "")
    assert again.stdout.strip() == "runs/ablations/norm"
    attempts = [
        json.loads((p / "run.json").read_text())["attempt"] for p in cells(whole, "norm").values()
    ]
    assert attempts == [1] * 6
    assert prints(whole, "norm") == before


def test_another_plan_under_the_same_name_is_refused(whole: Path) -> None:
    refused = grpo(*NORM, "--set", "optim.lr=1e-3", cwd=whole)
    assert refused.returncode == 2
    assert "error[GR223]" in refused.stderr
    assert "optim.lr` was 0.0003 and is 0.001" in refused.stderr


def test_watching_shows_every_arm(whole: Path) -> None:
    seen = grpo("runs", "watch", "norm", cwd=whole)
    assert seen.returncode == 0, seen.stderr
    for arm in ("std_norm-group *", "std_norm-batch", "std_norm-none"):
        assert any(line.startswith(arm) and "2/2" in line for line in seen.stdout.splitlines())


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_an_ablation_that_was_cut_short_ends_in_the_same_bits(
    whole: Path, tmp_path: Path, number: signal.Signals
) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "grpo_cli", *NORM],
        cwd=tmp_path,
        env={**os.environ, "MLFLOW_TRACKING_URI": "none"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and process.poll() is None:
        metrics = (tmp_path / "runs").glob("ablations/norm/*/s*/metrics.jsonl")
        if any(len(file.read_text().splitlines()) > 1 for file in metrics):
            break
        time.sleep(0.05)
    process.send_signal(number)
    code = process.wait(60)
    assert code == (130 if number is signal.SIGINT else -signal.SIGKILL)
    again = grpo(*NORM, cwd=tmp_path, timeout=200)
    assert again.returncode == 0, again.stderr
    assert prints(tmp_path, "norm") == prints(whole, "norm")


def test_a_cell_that_diverges_is_marked_and_the_others_go_on(tmp_path: Path) -> None:
    args = (
        *("ablate", "--axis", "optim.lr=3e-4,1e30", "--seeds", "2", "--name", "bad"),
        *("--arms", "random_reward,no_op", "--processes", "1", *SETS),
        *("--set", "optim.max_grad_norm=1e30", "--set", "optim.max_nonfinite=1"),
    )
    done = grpo(*args, "--json", cwd=tmp_path)
    assert done.returncode == 1, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    summary = lines[-1]
    assert summary["type"] == "summary"
    assert (summary["done"], summary["cells"], summary["status"]) == (6, 8, "done")
    assert {(f["arm"], f["seed"]) for f in summary["failed"]} == {("lr-1e30", 0), ("lr-1e30", 1)}
    assert all("GR301" in f["reason"] for f in summary["failed"])
    assert {line["arm"] for line in lines[:-1]} == {"lr-3e-4", "lr-1e30", "random_reward", "no_op"}
    found = cells(tmp_path, "bad")
    started = (found["no_op", 0] / "eval" / "step-000000.jsonl").read_text()
    assert (found["no_op", 0] / "eval" / "step-000003.jsonl").read_text() == started
    coin = json.loads((found["random_reward", 0] / "metrics.jsonl").read_text().splitlines()[1])
    assert coin["scalars"]["optim/lr"] > 0
    # What diverged has given its answer.
    again = grpo(*args, "-q", cwd=tmp_path)
    assert again.returncode == 1
    assert json.loads((found["lr-1e30", 0] / "run.json").read_text())["attempt"] == 1


@pytest.mark.slow
def test_more_seeds_train_only_the_new_cells(tmp_path: Path) -> None:
    few = ("ablate", "--arms", "no_op", "--name", "n", "--processes", "1", *SETS)
    assert grpo(*few, "--seeds", "1", cwd=tmp_path).returncode == 0
    before = prints(tmp_path, "n")
    assert grpo(*few, "--seeds", "2", cwd=tmp_path).returncode == 0
    after = prints(tmp_path, "n")
    assert len(after) == 4
    assert {cell: after[cell] for cell in before} == before
    plan = json.loads((tmp_path / "runs" / "ablations" / "n" / "plan.json").read_text())
    assert plan["seeds_added"] == [[0], [1]]


@pytest.mark.slow
def test_mlflow_gets_a_parent_with_children_and_a_dead_one_costs_little(tmp_path: Path) -> None:
    from mlflow.tracking import MlflowClient

    args = ("ablate", "--arms", "no_op", "--seeds", "1", "--name", "m", "--processes", "1", *SETS)
    uri = f"sqlite:///{tmp_path / 'store.db'}"
    dead = grpo(*args, cwd=tmp_path, MLFLOW_TRACKING_URI="http://127.0.0.1:9")
    assert dead.returncode == 0, dead.stderr
    assert "0 of 8 steps" in dead.stdout
    synced = grpo("runs", "sync", "--tracking-uri", uri, cwd=tmp_path)
    assert synced.returncode == 0, synced.stderr
    live = grpo(*args[: -len(SETS)], *SETS, "--seeds", "2", cwd=tmp_path, MLFLOW_TRACKING_URI=uri)
    assert live.returncode == 0, live.stderr
    client = MlflowClient(tracking_uri=uri)
    experiment = client.get_experiment_by_name("grpo/m")
    assert experiment is not None
    runs = client.search_runs([experiment.experiment_id])
    (parent,) = [run for run in runs if run.data.tags["grpo.kind"] == "ablation"]
    assert parent.info.status == "FINISHED"
    assert {a.path for a in client.list_artifacts(parent.info.run_id)} == {"plan.json", "report"}
    children = [run for run in runs if run is not parent]
    assert {run.data.tags["mlflow.parentRunId"] for run in children} == {parent.info.run_id}
    assert {(r.data.tags["grpo.arm"], r.data.tags["grpo.seed"]) for r in children} == {
        (arm, seed) for arm in ("base", "no_op") for seed in ("0", "1")
    }
