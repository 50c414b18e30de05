"""The run folder: layout, lock, identity, records, resume, and what a failing disk does."""

from __future__ import annotations

import errno
import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from grpo_cli import environment, runlock
from grpo_cli.errors import GrpoError
from grpo_cli.recipe.schema import Recipe
from grpo_cli.rundir import (
    RunDir,
    check_metric_name,
    eval_steps,
    find_runs,
    is_held,
    read_eval,
    read_info,
    read_metrics,
    read_rollouts,
    run_state,
)
from grpo_cli.types import EvalRow, Finish, RunStatus, Status, StepRecord

TREE: dict[str, Any] = {
    "setup": "tiny",
    "objective": {"kind": "clip"},
    "optim": {"lr": 1e-3, "steps": 3},
    "model": {"id": "tiny"},
    "task": {"kind": "arithmetic"},
    "verifier": {"name": "exact"},
    "sampling": {"prompts_per_step": 2, "group_size": 2, "max_tokens": 8},
    "eval": {"num_questions": 2, "samples_per_question": 1},
}


def open_run(root: Path, **changes: Any) -> RunDir:
    arguments: dict[str, Any] = {
        "recipe_name": "dapo",
        "name": "arm",
        "seed": 0,
        "recipe": Recipe.model_validate(TREE),
        "origins": {"optim.lr": "recipes/dapo.yaml:6"},
        "sources": {"recipes/dapo.yaml": "a: 1\n", "/x/setup/tiny.yaml": "b: 2\n"},
        "command": ["grpo", "train", "a b"],
        "identity": {"model": "m1", "verifier": "v1"},
    }
    return RunDir.open(root, **{**arguments, **changes})


def record(step: int, **scalars: float) -> StepRecord:
    return StepRecord(step, 1_700_000_000_000 + step, {"reward/mean": step / 10, **scalars})


def fill(run: RunDir, scalars: dict[str, float]) -> None:
    for step in range(1000):
        run.append(record(step, **scalars))


def row(sample: int = 0, score: float = 1.0) -> EvalRow:
    return EvalRow("q", "c", sample, score, Status.OK, 3, Finish.STOP, "16")


def code_of(caught: pytest.ExceptionInfo[GrpoError]) -> str:
    return caught.value.problems[0].code


# --- layout ------------------------------------------------------------------------------------


def test_a_new_run_says_everything_about_itself(tmp_path: Path) -> None:
    with open_run(tmp_path) as run:
        assert run.path.parent == tmp_path / "dapo" / "arm"
        assert run.path.name.startswith("s0-")
        info = read_info(run.path)
        assert info == run.info
        assert (info.status, info.attempt, info.step) == (RunStatus.RUNNING, 1, -1)
        recipe = json.loads((run.path / "recipe.json").read_text())
        assert recipe["model"]["revision"] is None
        assert json.loads((run.path / "origins.json").read_text())
        assert (run.path / "sources" / "01-recipes_dapo.yaml").read_text() == "a: 1\n"
        assert (run.path / "sources" / "02-x_setup_tiny.yaml").read_text() == "b: 2\n"
        assert (run.path / "cmd.txt").read_text() == "grpo train 'a b'\n"
        env = json.loads((run.path / "env.json").read_text())
        assert env["python"] == sys.version.split()[0]
        assert env["packages"]["mlflow"].startswith("3.")
        assert set(env) == {
            "python", "platform", "cpu_count", "packages", "git_commit", "git_dirty"
        }  # fmt: skip
    assert find_runs(tmp_path) == [run.path]


def test_the_environment_is_never_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_TOKEN", "canary-5f3a")
    with open_run(tmp_path) as run:
        files = [p.read_bytes() for p in run.path.rglob("*") if p.is_file()]
        assert not any(b"canary-5f3a" in data for data in files)


def test_git_facts_are_null_outside_a_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*args: object, **kwargs: object) -> None:
        raise FileNotFoundError("git")

    environment._git.cache_clear()
    monkeypatch.setattr(subprocess, "run", missing)
    assert environment._git() == {"git_commit": None, "git_dirty": None}
    environment._git.cache_clear()


@pytest.mark.parametrize(
    "name", ["", ".", "..", "a/b", "-x", ".x", "a..b", "a b", "x" * 65, "a\n", "a.superseded-1"]
)
@pytest.mark.parametrize("field", ["name", "recipe_name"])
def test_a_name_that_is_not_plain_is_refused(tmp_path: Path, name: str, field: str) -> None:
    with pytest.raises(GrpoError) as caught:
        open_run(tmp_path, **{field: name})
    assert code_of(caught) == "GR209"
    assert list(tmp_path.iterdir()) == []


def test_a_linked_run_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "runs" / "dapo").mkdir(parents=True)
    (tmp_path / "runs" / "dapo" / "arm").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(GrpoError, match="symbolic link") as caught:
        open_run(tmp_path / "runs")
    assert code_of(caught) == "GR202"
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_a_root_that_is_a_file_is_gr202(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("x")
    with pytest.raises(GrpoError) as caught:
        open_run(tmp_path / "runs")
    assert code_of(caught) == "GR202"
    assert caught.value.exit_code == 2
    assert "--runs-dir" in str(caught.value.problems[0].hint)


@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES])
@pytest.mark.parametrize("call", ["mkdir", "open"])
def test_a_root_that_cannot_be_written_is_gr202(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, call: str
) -> None:
    def fail(*args: object, **kwargs: object) -> None:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(os, call, fail)
        with pytest.raises(GrpoError) as caught:
            open_run(tmp_path)
    assert code_of(caught) == "GR202"


# --- lock --------------------------------------------------------------------------------------

_HOLDER = """
import sys, time
from pathlib import Path
from grpo_cli.runlock import claim
lock = claim(Path(sys.argv[1]), Path(sys.argv[2]))
print("held", flush=True)
time.sleep(60)
"""


def test_a_second_process_is_told_who_holds_the_run(tmp_path: Path) -> None:
    with open_run(tmp_path) as run:
        path = run.path
    holder = subprocess.Popen(
        [sys.executable, "-c", _HOLDER, str(tmp_path), str(path)], stdout=subprocess.PIPE
    )
    assert holder.stdout is not None
    try:
        assert holder.stdout.readline() == b"held\n"
        assert is_held(path)
        start = time.monotonic()
        with pytest.raises(GrpoError, match=f"process {holder.pid} on ") as caught:
            open_run(tmp_path)
        assert time.monotonic() - start < 2
        assert code_of(caught) == "GR203"
        assert caught.value.exit_code == 2
        assert run_state(path, read_info(path)) == "running"
        holder.kill()
        holder.wait()
        assert run_state(path, read_info(path)) == "interrupted"
        open_run(tmp_path).close()
    finally:
        holder.kill()
        holder.wait()
        holder.stdout.close()


def test_this_process_counts_as_a_holder_too(tmp_path: Path) -> None:
    with open_run(tmp_path) as run:
        assert is_held(run.path)
        with pytest.raises(GrpoError) as caught:
            open_run(tmp_path)
        assert code_of(caught) == "GR203"
    assert not is_held(run.path)
    assert not is_held(tmp_path / "nowhere")


def test_a_failed_open_frees_the_lock(tmp_path: Path) -> None:
    open_run(tmp_path).close()
    with pytest.raises(GrpoError):
        open_run(tmp_path, identity={"model": "m2", "verifier": "v1"})
    open_run(tmp_path).close()


# --- reopening ---------------------------------------------------------------------------------


def test_reopening_counts_an_attempt_and_keeps_the_run(tmp_path: Path) -> None:
    with open_run(tmp_path) as run:
        first = run.info
        run.append(record(0))
        run.set_status(RunStatus.FAILED, "boom\n")
        assert read_info(run.path).ended is not None
    with open_run(tmp_path, command=["grpo", "again"]) as run:
        info = run.info
        assert (info.run_id, info.started) == (first.run_id, first.started)
        assert (info.attempt, info.step, info.status) == (2, 0, RunStatus.RUNNING)
        assert (info.ended, info.reason) == (None, None)
        assert (run.path / "cmd.txt").read_text().splitlines()[1] == "grpo again"


def test_a_done_run_is_reopened_as_it_is(tmp_path: Path) -> None:
    with open_run(tmp_path) as run:
        run.set_status(RunStatus.DONE)
    before = {p: p.read_bytes() for p in run.path.rglob("*.json") if p.name != "lock.json"}
    with open_run(tmp_path) as run:
        assert run.info.status is RunStatus.DONE
        assert {p: p.read_bytes() for p in before} == before


def test_another_identity_is_gr208_and_named(tmp_path: Path) -> None:
    open_run(tmp_path).close()
    with pytest.raises(GrpoError, match=r'verifier \("v1", now "v2"\)') as caught:
        open_run(tmp_path, identity={"model": "m1", "verifier": "v2"})
    assert code_of(caught) == "GR208"
    assert "--restart" in str(caught.value.problems[0].hint)


def test_a_changed_recipe_file_is_gr208_but_a_summary_is_not(tmp_path: Path) -> None:
    with open_run(tmp_path) as run:
        recipe = run.path / "recipe.json"
    other = {**TREE, "summary": "new words", "checkpoint": {"every": 1, "keep": 1}}
    open_run(tmp_path, recipe=Recipe.model_validate(other)).close()
    assert json.loads(recipe.read_text())["summary"] == "new words"
    tree = json.loads(recipe.read_text())
    tree["optim"]["lr"] = 0.5
    recipe.write_text(json.dumps(tree))
    with pytest.raises(GrpoError, match=r"optim\.lr \(0\.5, now 0\.001\)"):
        open_run(tmp_path)


def test_other_recipes_and_seeds_have_other_folders(tmp_path: Path) -> None:
    other = Recipe.model_validate({**TREE, "objective": {"kind": "clip", "high": 0.3}})
    paths = set()
    for change in ({}, {"seed": 1}, {"recipe": other}, {"name": "b"}, {"recipe_name": "x"}):
        with open_run(tmp_path, **change) as run:
            paths.add(run.path)
    assert len(paths) == 5
    assert find_runs(tmp_path) == sorted(paths)


def test_restart_keeps_the_old_folder(tmp_path: Path) -> None:
    ids = []
    for restart in (False, True, True):
        with open_run(tmp_path, restart=restart) as run:
            ids.append(run.info.run_id)
            run.append(record(0))
    assert len(set(ids)) == 3
    old = [run.path.with_name(f"{run.path.name}.superseded-{n}") for n in (1, 2)]
    assert [read_info(p).run_id for p in old] == ids[:2]
    assert find_runs(tmp_path) == [run.path]


def test_restart_works_on_a_damaged_run_and_without_one(tmp_path: Path) -> None:
    with open_run(tmp_path, restart=True) as run:
        run.append(record(0))
    (run.path / "run.json").write_text("{")
    with pytest.raises(GrpoError) as caught:
        open_run(tmp_path)
    assert code_of(caught) == "GR204"
    (run.path / "run.json").unlink()
    with pytest.raises(GrpoError) as caught:
        open_run(tmp_path)
    assert code_of(caught) == "GR206"
    with open_run(tmp_path, restart=True) as run:
        assert read_metrics(run.path) == []


# --- records -----------------------------------------------------------------------------------


def test_records_come_back_and_nan_is_null(tmp_path: Path) -> None:
    with open_run(tmp_path) as run:
        run.append(record(0, a=math.nan, b=math.inf))
        run.append(record(1))
        text = (run.path / "metrics.jsonl").read_text()
        assert "NaN" not in text
        assert "Infinity" not in text
        first, second = read_metrics(run.path)
        assert math.isnan(first.scalars["a"])
        assert math.isnan(first.scalars["b"])
        assert second == record(1)
        assert read_info(run.path).step == 1


def test_steps_go_up_and_names_are_legal(tmp_path: Path) -> None:
    with open_run(tmp_path) as run:
        run.append(record(3))
        with pytest.raises(AssertionError, match="step 3 after step 3"):
            run.append(record(3))
        with pytest.raises(ValueError, match="pass@1"):
            run.append(StepRecord(4, 0, {"pass@1": 1.0}))
        assert len(read_metrics(run.path)) == 1


@pytest.mark.parametrize("tail", [b'{"step": 2, "unix', b'{"step": 2}', b"\0\0\0\0", b"12\n"])
def test_a_torn_last_line_is_ignored_and_cut_on_reopening(tmp_path: Path, tail: bytes) -> None:
    with open_run(tmp_path) as run:
        run.append(record(0))
        run.append(record(1))
    metrics = run.path / "metrics.jsonl"
    whole = metrics.read_bytes()
    metrics.write_bytes(whole + tail)
    assert [r.step for r in read_metrics(run.path)] == [0, 1]
    assert metrics.read_bytes() == whole + tail
    with open_run(tmp_path) as run:
        assert metrics.read_bytes() == whole
        run.append(record(2))
        assert [r.step for r in read_metrics(run.path)] == [0, 1, 2]


def test_a_damaged_line_in_the_middle_is_gr204(tmp_path: Path) -> None:
    with open_run(tmp_path) as run:
        run.append(record(0))
        run.append(record(1))
    metrics = run.path / "metrics.jsonl"
    metrics.write_bytes(b"x" + metrics.read_bytes())
    with pytest.raises(GrpoError, match="line 1") as caught:
        read_metrics(run.path)
    assert code_of(caught) == "GR204"


def train_in_child(root: Path, crash_at: str) -> int:
    """The exit code of a process that opens the run and appends steps up to 3."""
    pid = os.fork()
    if pid == 0:
        try:
            os.environ["GRPO_CRASH_AT"] = crash_at
            with open_run(root) as run:
                for step in range(run.info.step + 1, 4):
                    run.append(record(step))
            os._exit(0)
        finally:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@pytest.mark.parametrize("point", ["append-begin:2", "append-written:2", "append-synced:2"])
def test_a_crash_while_appending_loses_no_finished_step(tmp_path: Path, point: str) -> None:
    assert train_in_child(tmp_path, point) == -signal.SIGKILL
    (path,) = find_runs(tmp_path)
    assert [r.step for r in read_metrics(path)] in ([0], [0, 1])
    assert run_state(path, read_info(path)) == "interrupted"
    assert train_in_child(tmp_path, "") == 0
    assert read_metrics(path) == [record(step) for step in range(4)]


@pytest.mark.parametrize("point", ["file-written", "file-replaced"])
def test_a_crash_at_any_file_can_be_repeated(tmp_path: Path, point: str) -> None:
    for hits in range(1, 50):
        root = tmp_path / str(hits)
        code = train_in_child(root, f"{point}:{hits}")
        if code == -signal.SIGKILL:
            code = train_in_child(root, "")
            survived = False
        else:
            survived = True
        assert code == 0
        (path,) = find_runs(root)
        assert read_metrics(path) == [record(step) for step in range(4)]
        assert read_info(path).step == 3
        if survived:
            break
    assert 10 < hits < 49


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_a_record_that_cannot_be_written_is_gr303(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def fail(fd: int) -> None:
        raise OSError(number, os.strerror(number))

    with open_run(tmp_path) as run:
        run.append(record(0))
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", fail)
            with pytest.raises(GrpoError) as caught:
                run.append(record(1))
        assert code_of(caught) == "GR303"
        assert caught.value.exit_code == 3
        assert "last checkpoint" in str(caught.value.problems[0].hint)
        assert read_metrics(run.path) == [record(0)]
        run.append(record(1))
        assert read_metrics(run.path) == [record(0), record(1)]


def test_a_full_disk_while_a_run_writes(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=128k", "tmpfs", str(disk)]
    try:
        mounted = subprocess.run(mount, capture_output=True).returncode == 0
    except FileNotFoundError:
        mounted = False
    if not mounted:
        pytest.skip("no right to mount a small disk")
    try:
        with open_run(disk) as run:
            wide = {f"m{i}": float(i) for i in range(200)}
            with pytest.raises(GrpoError) as caught:
                fill(run, wide)
            assert code_of(caught) == "GR303"
            kept = read_metrics(run.path)
            assert len(kept) > 5
            with pytest.raises(GrpoError, match="GR303"):
                run.write_eval(0, [row(i) for i in range(2000)])
            assert eval_steps(run.path) == []
            assert read_metrics(run.path) == kept
    finally:
        subprocess.run(["umount", str(disk)], check=True)


# --- resume ------------------------------------------------------------------------------------


def test_resume_sets_aside_what_comes_after_the_checkpoint(tmp_path: Path) -> None:
    with open_run(tmp_path) as run:
        for step in range(5):
            run.write_rollouts(step, [{"step": step}])
            run.write_eval(step, [row()])
            run.append(record(step))
        lines = (run.path / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    with open_run(tmp_path) as run:
        run.truncate_after(2)
        assert [r.step for r in read_metrics(run.path)] == [0, 1, 2]
        assert read_info(run.path).step == 2
        assert eval_steps(run.path) == [0, 1, 2]
        aside = run.path / "superseded"
        assert (aside / "attempt-1.metrics.jsonl").read_bytes() == b"".join(lines[3:])
        assert (aside / "attempt-1.rollouts.step-000004.jsonl.gz").exists()
        assert (aside / "attempt-1.eval.step-000003.jsonl").exists()
        run.truncate_after(2)
        run.append(record(3))
    with open_run(tmp_path) as run:
        run.truncate_after(-1)
        assert read_metrics(run.path) == []
        assert run.info.step == -1
        assert len((aside / "attempt-2.metrics.jsonl").read_bytes().splitlines()) == 4
        run.append(record(0))


def test_a_crash_within_truncation_can_be_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_run(tmp_path) as run:
        for step in range(4):
            run.append(record(step))
        real = os.replace

        def once(source: Path, target: Path) -> None:
            if target.name == "metrics.jsonl":
                raise OSError(errno.EIO, "no")
            real(source, target)

        with monkeypatch.context() as patch:
            patch.setattr(os, "replace", once)
            with pytest.raises(GrpoError):
                run.truncate_after(1)
        assert len(read_metrics(run.path)) == 4
        run.truncate_after(1)
        assert [r.step for r in read_metrics(run.path)] == [0, 1]
        aside = run.path / "superseded" / "attempt-1.metrics.jsonl"
        assert len(aside.read_bytes().splitlines()) == 2


def test_a_changed_environment_is_kept_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_run(tmp_path) as run:
        before = (run.path / "env.json").read_bytes()
    monkeypatch.setattr(environment, "_PACKAGES", ("torch",))
    with open_run(tmp_path) as run:
        assert (run.path / "superseded" / "attempt-1.env.json").read_bytes() == before
        assert (run.path / "env.json").read_bytes() != before


# --- rollouts and evaluations ------------------------------------------------------------------


def test_rollouts_are_the_same_bytes_for_the_same_rows(tmp_path: Path) -> None:
    rows = [{"text": "1+1=2 é", "status": Status.OK, "reward": math.nan, "ids": [1, 2]}]
    with open_run(tmp_path) as run:
        path = run.write_rollouts(1, rows)
        first = path.read_bytes()
        time.sleep(1.1)
        assert run.write_rollouts(1, rows).read_bytes() == first
        assert path.name == "step-000001.jsonl.gz"
        (back,) = read_rollouts(run.path, 1)
        assert back == {"text": "1+1=2 é", "status": "ok", "reward": None, "ids": [1, 2]}


def test_evaluations_come_back(tmp_path: Path) -> None:
    rows = (row(0), row(1, score=math.nan))
    with open_run(tmp_path) as run:
        assert run.write_eval(20, rows).name == "step-000020.jsonl"
        back = read_eval(run.path, 20)
        assert back[0] == rows[0]
        assert math.isnan(back[1].score)
        assert isinstance(back[1].status, Status)
        assert eval_steps(run.path) == [20]
        with pytest.raises(FileNotFoundError):
            read_eval(run.path, 21)


@pytest.mark.parametrize("name", ["a", "eval/pass_at_1", "time/step_s", "a b:c-d.e/f"])
def test_metric_names_that_mlflow_takes(name: str) -> None:
    from mlflow.utils.validation import _validate_metric_name

    check_metric_name(name)
    _validate_metric_name(name)


@pytest.mark.parametrize(
    "name", ["", "pass@1", "kl(k3)", "/a", "a//b", "a/../b", "..", ".", "a/", "x" * 251, "a,b"]
)
def test_metric_names_that_it_does_not_take(name: str) -> None:
    with pytest.raises(ValueError, match="legal"):
        check_metric_name(name)


def test_no_such_run(tmp_path: Path) -> None:
    with pytest.raises(GrpoError) as caught:
        read_info(tmp_path)
    assert code_of(caught) == "GR206"


def test_reading_and_writing_runs_needs_no_torch(tmp_path: Path) -> None:
    program = (
        "import sys, grpo_cli.track, grpo_cli.cli.runs;"
        "sys.exit(any(m in sys.modules for m in ('torch', 'mlflow', 'scipy')))"
    )
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0
    assert runlock.utc_now().endswith("+00:00")
