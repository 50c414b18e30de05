"""The heavy promises: kill anywhere, a dead tracker, an installed wheel."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import sysconfig
import time
import venv
from pathlib import Path

import pytest

from grpo_cli.rundir import read_metrics
from tests.e2e.conftest import fingerprint, grpo, only_run, small_run

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def test_sigkill_at_ten_moments_of_a_run(tmp_path: Path) -> None:
    """Killed at ten moments spread over a 12-step run; each time the same command finishes it."""
    args = small_run(12)
    start = time.monotonic()
    whole = tmp_path / "whole"
    whole.mkdir()
    assert grpo(*args, cwd=whole).returncode == 0
    duration = time.monotonic() - start
    want = fingerprint(only_run(whole))
    killed_with_work = 0
    for moment in range(10):
        cwd = tmp_path / f"kill{moment}"
        cwd.mkdir()
        process = subprocess.Popen(
            [sys.executable, "-m", "grpo_cli", *args],
            cwd=cwd,
            env={**os.environ, "MLFLOW_TRACKING_URI": "none"},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            # From the first evaluation to the last steps.
            process.wait(duration * (0.35 + 0.065 * moment))
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.wait()
        run = only_run(cwd)
        done = json.loads((run / "run.json").read_text())["status"] == "done"
        killed_with_work += not done
        assert grpo(*args, cwd=cwd).returncode == 0
        assert fingerprint(run) == want, f"killed at moment {moment}"
    assert killed_with_work >= 8, "the kills came too late to test anything"


def test_a_dead_tracker_stops_nothing_and_sync_replays_exactly_once(tmp_path: Path) -> None:
    dead = grpo(*small_run(4), cwd=tmp_path, MLFLOW_TRACKING_URI="http://127.0.0.1:9")
    assert dead.returncode == 0, dead.stderr
    assert "grpo runs sync" in dead.stdout
    run = only_run(tmp_path)
    uri = f"sqlite:///{tmp_path}/store.db"
    for expected in ("5", "0"):
        synced = grpo("runs", "sync", "--tracking-uri", uri, cwd=tmp_path)
        assert synced.returncode == 0, synced.stderr
        assert expected in synced.stdout
    from mlflow.tracking import MlflowClient

    client = MlflowClient(uri)
    (experiment,) = [e for e in client.search_experiments() if e.name == "grpo/dapo"]
    (mirrored,) = client.search_runs([experiment.experiment_id])
    assert mirrored.info.status == "FINISHED"
    assert mirrored.data.params["objective.high"] == "0.28"
    for name in ("reward/accuracy", "eval/accuracy", "eval/pass_at_2"):
        sent = [(m.step, m.value) for m in client.get_metric_history(mirrored.info.run_id, name)]
        own = [(r.step, r.scalars[name]) for r in read_metrics(run) if name in r.scalars]
        assert sorted(sent) == own
    artifacts = {f.path for f in client.list_artifacts(mirrored.info.run_id)}
    assert {"adapter", "recipe.json"} <= artifacts


def test_an_installed_wheel_trains_from_another_folder(tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*build, "--wheel-dir", tmp_path, str(root)], check=True)
    (wheel,) = tmp_path.glob("*.whl")
    home = tmp_path / "venv"
    venv.create(home, with_pip=False)
    python = home / "bin" / "python"
    site = subprocess.check_output(
        [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], text=True
    ).strip()
    # The libraries come from the environment of the tests; the package itself from the wheel.
    Path(site, "libraries.pth").write_text(sysconfig.get_path("purelib") + "\n")
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", site]
    subprocess.run([*install, str(wheel)], check=True)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    env = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    where = subprocess.check_output(
        [python, "-c", "import grpo_cli; print(grpo_cli.__file__)"], cwd=elsewhere, text=True
    )
    assert where.startswith(str(home))
    done = subprocess.run(
        [python, "-m", "grpo_cli", *small_run(1), "--tracking-uri", "none"],
        cwd=elsewhere,
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "run folder" in done.stdout
    assert only_run(elsewhere)
