"""The MLflow mirror against a real SQLite store, a dead server and one that never answers."""

from __future__ import annotations

import json
import math
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from grpo_cli import mlflow_run, track
from grpo_cli.errors import GrpoError
from grpo_cli.mlflow_run import MAX_VALUE, recipe_params, settings, shown_uri
from grpo_cli.recipe.schema import Recipe
from grpo_cli.rundir import RunDir, find_runs
from grpo_cli.track import default_uri, start_mirror, sync
from grpo_cli.types import RunStatus, StepRecord

DEAD = "http://127.0.0.1:9"
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


def open_run(root: Path, **changes: Any) -> RunDir:
    arguments: dict[str, Any] = {
        "recipe_name": "dapo",
        "name": "arm",
        "seed": 0,
        "recipe": RECIPE,
        "origins": {},
        "sources": {},
        "command": ["grpo", "train"],
        "identity": {"verifier": "v1"},
    }
    return RunDir.open(root, **{**arguments, **changes})


def append(run: RunDir, *steps: int) -> None:
    for step in steps:
        scalars = {"reward/mean": step / 10, "only/nan": math.nan}
        run.append(StepRecord(step, 1_700_000_000_000 + step, scalars))


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty store; making one takes seconds, copying it does not.

    Made by two processes at once, which breaks MLflow without our lock.
    """
    path = tmp_path_factory.mktemp("store") / "mlflow.db"
    program = (
        "import sys; from grpo_cli.mlflow_run import settings, connect\n"
        "with settings(): connect(sys.argv[1])\n"
        "assert 'torch' not in sys.modules"
    )
    command = [sys.executable, "-c", program, f"sqlite:///{path}"]
    both = [subprocess.Popen(command, stderr=subprocess.PIPE) for _ in range(2)]
    errors = [process.communicate()[1].decode() for process in both]
    assert [process.returncode for process in both] == [0, 0], errors
    return path


@pytest.fixture
def root(tmp_path: Path, template: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A runs folder with a store."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    folder = tmp_path / "runs"
    folder.mkdir()
    shutil.copy(template, folder / "mlflow.db")
    return folder


@pytest.fixture
def hanging() -> Iterator[str]:
    """A server that accepts and never answers."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen(64)
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


def client(root: Path) -> Any:
    from mlflow.tracking import MlflowClient

    return MlflowClient(tracking_uri=default_uri(root))


def stored(root: Path) -> list[Any]:
    """Every active MLflow run of the experiment."""
    experiment = client(root).get_experiment_by_name("grpo/dapo")
    return list(client(root).search_runs([experiment.experiment_id])) if experiment else []


def points(root: Path, run_id: str) -> list[tuple[int, float, int]]:
    history = client(root).get_metric_history(run_id, "reward/mean")
    return [(m.step, m.value, m.timestamp) for m in history]


def expected(*steps: int) -> list[tuple[int, float, int]]:
    return [(s, s / 10, 1_700_000_000_000 + s) for s in steps]


def test_a_run_is_copied_whole(root: Path) -> None:
    with open_run(root) as run:
        append(run, 0, 1, 2)
        adapter = run.path / "checkpoints" / "step-000002" / "adapter"
        adapter.mkdir(parents=True)
        (adapter / "weights.bin").write_text("w")
        (run.path / "adapter").symlink_to("checkpoints/step-000002/adapter")
        run.set_status(RunStatus.DONE)
        result = sync(run.path, default_uri(root))
    assert (result.new, result.sent, result.total) == (3, 3, 3)
    (found,) = stored(root)
    assert found.info.run_name == "arm s0"
    assert found.info.status == "FINISHED"
    assert points(root, found.info.run_id) == expected(0, 1, 2)
    assert "only/nan" not in found.data.metrics
    assert found.data.params["optim.lr"] == "0.001"
    assert found.data.params["model.revision"] == "null"
    assert found.data.params["optim.betas"] == "[0.9, 0.999]"
    tags = found.data.tags
    assert tags["grpo.kind"] == "train"
    assert tags["grpo.seed"] == "0"
    assert tags["grpo.arm"] == "arm"
    assert tags["grpo.verifier_sha"] == "v1"
    assert tags["grpo.recipe_hash"] == RECIPE.hash
    assert tags["grpo.run_dir"] == str(run.path)
    assert tags["grpo.status"] == "done"
    artifacts = root / "mlartifacts" / found.info.run_id / "artifacts"
    assert json.loads((artifacts / "recipe.json").read_text())["optim"]["steps"] == 3
    assert (artifacts / "adapter" / "weights.bin").read_text() == "w"
    assert not Path("mlruns").exists()
    again = sync(run.path, default_uri(root))
    assert (again.new, again.sent) == (0, 3)
    assert len(stored(root)) == 1


def test_each_step_is_sent_once_also_after_a_resume(root: Path) -> None:
    uri = default_uri(root)
    with open_run(root) as run:
        append(run, 0, 1, 2, 3)
    assert sync(run.path, uri).new == 4
    (found,) = stored(root)
    assert found.info.status == "KILLED"
    assert found.data.tags["grpo.status"] == "interrupted"
    with open_run(root) as run:
        run.truncate_after(1)
        for step in (2, 3, 4):
            # Done again at another time: MLflow would show both points of a step.
            run.append(StepRecord(step, 1_800_000_000_000, {"reward/mean": step / 10}))
            sync(run.path, uri)
        (found,) = stored(root)
        assert found.info.status == "RUNNING"
        run.set_status(RunStatus.FAILED, "boom")
    sync(run.path, uri)
    (found,) = stored(root)
    assert found.info.status == "FAILED"
    history = points(root, found.info.run_id)
    assert [step for step, _, _ in history] == [0, 1, 2, 3, 4]
    assert history[:4] == expected(0, 1, 2, 3)


def test_a_crash_before_the_mark_is_written_doubles_nothing(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = default_uri(root)
    with open_run(root) as run:
        append(run, 0, 1)
        sync(run.path, uri)
        append(run, 2, 3)

        def die(self: object, **changes: Any) -> None:
            if "last_step" in changes:
                raise OSError("killed here")

        with monkeypatch.context() as patch:
            patch.setattr(mlflow_run.MlflowRun, "_save", die)
            with pytest.raises(GrpoError, match="killed here"):
                sync(run.path, uri)
        assert sync(run.path, uri).new == 2
        # Also when all memory of what was sent is lost.
        (run.path / "mlflow.json").unlink()
        assert sync(run.path, uri).new == 4
    (found,) = stored(root)
    assert points(root, found.info.run_id) == expected(0, 1, 2, 3)


def test_a_run_that_was_deleted_from_the_store_begins_anew(root: Path) -> None:
    uri = default_uri(root)
    with open_run(root) as run:
        append(run, 0, 1)
        sync(run.path, uri)
        (first,) = stored(root)
        client(root).delete_run(first.info.run_id)
        append(run, 2)
        sync(run.path, uri)
        (second,) = stored(root)
        assert second.info.run_id != first.info.run_id
        assert points(root, second.info.run_id) == expected(0, 1, 2)
        client(root).delete_experiment(second.info.experiment_id)
        with pytest.raises(GrpoError, match=r"GR207.*was deleted"):
            sync(run.path, uri)


def test_a_folder_that_was_begun_again_is_another_mlflow_run(root: Path) -> None:
    uri = default_uri(root)
    for restart in (False, True):
        with open_run(root, restart=restart) as run:
            append(run, 0)
            sync(run.path, uri)
    assert len(stored(root)) == 2


def test_steps_share_calls_up_to_the_limit(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_run(root) as run:
        for step in range(12):
            run.append(StepRecord(step, 1, {f"m{i}": 1.0 for i in range(300)}))
        run.append(StepRecord(12, 1, {f"m{i}": 1.0 for i in range(1100)}))
        real, sizes = mlflow_run._batches, []

        def spy(records: list[StepRecord]) -> Iterator[list[StepRecord]]:
            for batch in real(records):
                sizes.append(sum(len(r.scalars) for r in batch))
                yield batch

        monkeypatch.setattr(mlflow_run, "_batches", spy)
        assert sync(run.path, default_uri(root)).sent == 13
        assert sizes == [900, 900, 900, 900, 1100]
    (found,) = stored(root)
    assert len(client(root).get_metric_history(found.info.run_id, "m1")) == 13
    assert len(client(root).get_metric_history(found.info.run_id, "m1099")) == 1


def test_a_dead_server_is_refused_quickly_and_loses_nothing(root: Path) -> None:
    with open_run(root) as run:
        append(run, 0, 1)
        start = time.monotonic()
        with pytest.raises(GrpoError) as caught:
            sync(run.path, "http://user:pa55word@127.0.0.1:9")
        assert time.monotonic() - start < 5
        assert caught.value.problems[0].code == "GR207"
        assert caught.value.exit_code == 2
        assert "grpo runs sync" in str(caught.value.problems[0].hint)
        assert "pa55word" not in str(caught.value)
        assert sync(run.path, default_uri(root)).new == 2
        assert "pa55word" not in (run.path / "mlflow.json").read_text()


def test_a_store_that_cannot_be_opened_is_gr207(root: Path) -> None:
    (root / "file").write_text("x")
    with open_run(root) as run:
        for uri in (f"sqlite:///{root}/file/mlflow.db", f"{root}/mlruns", "what://is/this"):
            with pytest.raises(GrpoError, match="GR207"):
                sync(run.path, uri)


def test_only_one_process_sends_a_run(root: Path) -> None:
    with open_run(root) as run:
        append(run, 0)
        with FileLock(run.path / "mlflow.lock"), pytest.raises(GrpoError, match="GR203"):
            sync(run.path, default_uri(root))
        assert sync(run.path, default_uri(root)).new == 1


# --- the mirror process ------------------------------------------------------------------------


def wait_for(condition: Any, timeout_s: float = 30) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def last_step(run: RunDir, uri: str) -> int:
    places = mlflow_run.read_places(run.path, run.info.run_id)
    return int(places.get(shown_uri(uri), {}).get("last_step", -1))


def test_the_mirror_follows_and_ends_with_the_run(root: Path) -> None:
    uri = default_uri(root)
    with open_run(root) as run:
        mirror = start_mirror(run.path, uri)
        append(run, 0)
        wait_for(lambda: last_step(run, uri) == 0)
        assert stored(root)[0].info.status == "RUNNING"
        append(run, 1, 2)
        wait_for(lambda: last_step(run, uri) == 2)
        append(run, 3)
        run.set_status(RunStatus.STOPPED)
        start = time.monotonic()
        result = mirror.finish()
        assert time.monotonic() - start < 10
    assert (result.sent, result.total, result.error) == (4, 4, None)
    assert result.summary == f"4 of 4 steps in {uri}"
    (found,) = stored(root)
    assert found.info.status == "KILLED"
    assert points(root, found.info.run_id) == expected(0, 1, 2, 3)
    assert [p.name for p in (run.path / "logs").iterdir() if p.suffix == ".stop"] == []


def test_a_mirror_outlives_a_killed_trainer_just_long_enough(root: Path) -> None:
    program = f"""
import os, sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from pathlib import Path
from test_track import open_run, append
from grpo_cli.track import start_mirror, default_uri
root = Path({str(root)!r})
run = open_run(root)
mirror = start_mirror(run.path, default_uri(root))
append(run, 0, 1)
print(mirror._process.pid, flush=True)
os.kill(os.getpid(), 9)
"""
    trainer = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE)
    assert trainer.returncode == -9
    pid = int(trainer.stdout)
    wait_for(lambda: not Path(f"/proc/{pid}").exists() or "Z" in _state(pid))
    (found,) = stored(root)
    assert found.info.status == "KILLED"
    assert points(root, found.info.run_id) == expected(0, 1)
    (path,) = find_runs(root)
    assert sync(path, default_uri(root)).new == 0


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return "Z"


def test_a_dead_server_costs_the_run_nothing(root: Path) -> None:
    with open_run(root) as run:
        mirror = start_mirror(run.path, DEAD)
        append(run, 0, 1)
        wait_for(lambda: _error(run))
        append(run, 2)
        run.set_status(RunStatus.DONE)
        start = time.monotonic()
        result = mirror.finish()
        assert time.monotonic() - start < 4
        assert (result.sent, result.total) == (0, 3)
        assert result.error is not None
        assert "grpo runs sync" in result.summary
    assert sync(run.path, default_uri(root)).new == 3
    (found,) = stored(root)
    assert found.info.status == "FINISHED"
    assert points(root, found.info.run_id) == expected(0, 1, 2)


def _error(run: RunDir) -> str | None:
    path = run.path / "logs" / "mirror.json"
    return json.loads(path.read_text())["error"] if path.exists() else None


def test_a_server_that_never_answers_is_left_after_three_seconds(root: Path, hanging: str) -> None:
    with open_run(root) as run:
        mirror = start_mirror(run.path, hanging)
        append(run, 0)
        path = run.path / "logs" / "mirror.json"
        wait_for(lambda: path.exists() and not json.loads(path.read_text())["local"])
        run.set_status(RunStatus.DONE)
        start = time.monotonic()
        result = mirror.finish()
        assert time.monotonic() - start < 4.5
        assert (result.sent, result.total) == (0, 1)
        assert result.error
        assert mirror.finish().error
    assert sync(run.path, default_uri(root)).new == 1


def test_a_mirror_that_cannot_start_is_only_reported(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with open_run(root) as run:
        append(run, 0)
        result = start_mirror(run.path, default_uri(root)).finish()
        assert (result.sent, result.total) == (0, 1)
        assert "did not start" in str(result.error)


def test_a_password_is_in_no_file_and_no_command_line(root: Path) -> None:
    with open_run(root) as run:
        mirror = start_mirror(run.path, "http://user:pa55word@127.0.0.1:9")
        process = mirror._process
        assert process is not None
        command = Path(f"/proc/{process.pid}/cmdline").read_bytes()
        append(run, 0)
        run.set_status(RunStatus.DONE)
        result = mirror.finish()
        files = [p.read_bytes() for p in run.path.rglob("*") if p.is_file()]
        for text in (command, *files, result.summary.encode()):
            assert b"pa55word" not in text


# --- small parts -------------------------------------------------------------------------------


def test_where_the_store_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.chdir(tmp_path)
    assert default_uri(Path("runs")) == f"sqlite:///{tmp_path}/runs/mlflow.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", DEAD)
    assert default_uri(Path("runs")) == DEAD


def test_what_is_shown_of_a_uri(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert shown_uri("https://u:p@host:5000/x?token=t#f") == "https://host:5000/x"
    assert shown_uri("postgresql://u:p@h/db?password=x") == "postgresql://h/db"
    assert shown_uri("sqlite:///a/m.db?timeout=3") == f"sqlite:///{tmp_path}/a/m.db"
    assert shown_uri("sqlite:////a/m.db") == "sqlite:////a/m.db"


def test_parameters_are_leaves_and_long_ones_are_cut_visibly() -> None:
    tree = {"a": {"b": 1, "c": ["x", 2], "e": ""}, "d": None, "long": "y" * 7000}
    params = dict(recipe_params(tree))
    assert params["a.b"] == "1"
    assert params["a.c"] == '["x", 2]'
    assert params["a.e"] == '""'
    assert params["d"] == "null"
    assert len(params["long"]) <= MAX_VALUE
    assert "sha256:" in params["long"]


def test_settings_are_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "77")
    monkeypatch.delenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", raising=False)
    with settings():
        assert os.environ["MLFLOW_HTTP_REQUEST_TIMEOUT"] == str(mlflow_run.HTTP_TIMEOUT_S)
    assert os.environ["MLFLOW_HTTP_REQUEST_TIMEOUT"] == "77"
    assert "MLFLOW_HTTP_REQUEST_MAX_RETRIES" not in os.environ


def test_the_metric_name_check_is_here_too() -> None:
    with pytest.raises(ValueError, match="legal"):
        track.check_metric_name("pass@1")
