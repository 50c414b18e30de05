"""`grpo train` through a real process on the tiny world."""

from __future__ import annotations

import gzip
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.e2e.conftest import fingerprint, grpo, only_run, small_run


def test_a_run_leaves_a_complete_folder(whole_run: Path) -> None:
    run = only_run(whole_run)
    assert json.loads((run / "run.json").read_text())["status"] == "done"
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [r["step"] for r in records] == list(range(7))
    assert [r["step"] for r in records if "eval/accuracy" in r["scalars"]] == [0, 4, 6]
    assert sorted(p.name for p in (run / "checkpoints").iterdir()) == ["step-000003", "step-000006"]
    recipe = json.loads((run / "recipe.json").read_text())
    assert recipe["optim"]["steps"] == 6
    origins = json.loads((run / "origins.json").read_text())
    assert origins["objective.high"].startswith("recipes/dapo.yaml:")
    assert origins["optim.steps"] == "--set #1"
    assert "train dapo" in (run / "cmd.txt").read_text()


def test_the_adapter_changed_and_every_completion_names_its_version(whole_run: Path) -> None:
    run = only_run(whole_run)
    versions = []
    for step in range(1, 7):
        with gzip.open(run / "rollouts" / f"step-{step:06d}.jsonl.gz", "rt") as stream:
            rows = [json.loads(line) for line in stream]
        assert len({row["adapter_version"] for row in rows}) == 1
        versions.append(rows[0]["adapter_version"])
        for row in rows:
            assert len(row["token_ids"]) == len(row["sampler_logp"])
            assert (row["advantage"] is None) == (not row["kept"])
        for start in range(0, len(kept := [r for r in rows if r["kept"]]), 4):
            group = kept[start : start + 4]
            assert len({r["prompt_id"] for r in group}) == 1
            assert len({r["score"] for r in group}) > 1, "dynamic sampling kept a group"
            assert abs(sum(r["advantage"] for r in group)) < 1e-6
    assert versions == sorted(set(versions))
    assert versions[0] == 0


def test_metrics_agree_with_the_saved_rollouts(whole_run: Path) -> None:
    run = only_run(whole_run)
    for line in (run / "metrics.jsonl").read_text().splitlines()[1:]:
        record = json.loads(line)
        scalars = record["scalars"]
        with gzip.open(run / "rollouts" / f"step-{record['step']:06d}.jsonl.gz", "rt") as stream:
            rows = [json.loads(row) for row in stream]
        assert scalars["reward/accuracy"] == pytest.approx(
            sum(row["score"] for row in rows) / len(rows)
        )
        assert scalars["reward/mean"] == pytest.approx(
            sum(row["reward"] for row in rows) / len(rows)
        )
        assert scalars["completion/truncated_frac"] == pytest.approx(
            sum(row["finish"] == "length" for row in rows) / len(rows)
        )
        assert scalars["group/sampled"] * 4 == len(rows)
        assert scalars["loss/tokens"] == sum(len(r["token_ids"]) for r in rows if r["kept"])
        assert scalars["mismatch/logp_abs_max"] < 1e-4


def test_a_finished_run_says_so_and_trains_nothing(whole_run: Path) -> None:
    before = fingerprint(only_run(whole_run))
    again = grpo(*small_run(6), cwd=whole_run)
    assert again.returncode == 0, again.stderr
    assert "already finished" in again.stdout
    assert "--set optim.steps=6" in again.stdout, "the suggested command keeps its options"
    assert "--seed 1" in again.stdout
    assert fingerprint(only_run(whole_run)) == before


def test_the_same_command_gives_the_same_bits(whole_run: Path, tmp_path: Path) -> None:
    assert grpo(*small_run(6), cwd=tmp_path).returncode == 0
    assert fingerprint(only_run(tmp_path)) == fingerprint(only_run(whole_run))


def test_another_seed_is_another_run_on_the_same_questions(whole_run: Path, tmp_path: Path) -> None:
    assert grpo(*small_run(6), "--seed", "1", cwd=tmp_path).returncode == 0
    one, zero = only_run(tmp_path), only_run(whole_run)
    assert fingerprint(one) != fingerprint(zero)
    asked = [
        {json.loads(row)["question_id"] for row in path.read_text().splitlines()}
        for path in (one / "eval" / "step-000000.jsonl", zero / "eval" / "step-000000.jsonl")
    ]
    assert asked[0] == asked[1]


def interrupt(args: list[str], cwd: Path, step: int, *numbers: int) -> subprocess.CompletedProcess:
    """Start `grpo`, send it signals when `step` is on record, wait for its end."""
    process = subprocess.Popen(
        [sys.executable, "-m", "grpo_cli", *args],
        cwd=cwd,
        env={**os.environ, "MLFLOW_TRACKING_URI": "none"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 100
    while time.monotonic() < deadline and process.poll() is None:
        found = list((cwd / "runs").glob("*/*/s*-*/metrics.jsonl"))
        if found and len(found[0].read_text().splitlines()) > step:
            for number in numbers:
                process.send_signal(number)
                time.sleep(0.05)
            break
        time.sleep(0.02)
    out, err = process.communicate(timeout=60)
    return subprocess.CompletedProcess(args, process.returncode, out, err)


@pytest.mark.slow
@pytest.mark.parametrize(
    "numbers", [(signal.SIGINT,), (signal.SIGINT, signal.SIGINT), (signal.SIGKILL,)]
)
def test_an_interrupted_run_continues_to_the_same_bits(
    whole_run: Path, tmp_path: Path, numbers: tuple[int, ...]
) -> None:
    stopped = interrupt(small_run(6), tmp_path, 2, *numbers)
    run = only_run(tmp_path)
    if signal.SIGINT in numbers:
        assert stopped.returncode == 130, stopped.stderr
    if numbers == (signal.SIGINT,):
        assert "Traceback" not in stopped.stderr
        assert "finishing this step" in stopped.stderr
        assert json.loads((run / "run.json").read_text())["status"] == "stopped"
        assert list((run / "checkpoints").iterdir()), "Ctrl-C saves"
    again = grpo(*small_run(6), cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    assert fingerprint(run) == fingerprint(only_run(whole_run))


@pytest.mark.slow
def test_restart_sets_the_old_run_aside(whole_run: Path, tmp_path: Path) -> None:
    assert grpo(*small_run(1), cwd=tmp_path).returncode == 0
    assert grpo(*small_run(1), "--restart", cwd=tmp_path).returncode == 0
    names = sorted(p.name for p in (tmp_path / "runs" / "dapo" / "tiny").iterdir())
    assert len(names) == 2
    assert any("superseded" in name for name in names)


def test_json_streams_one_record_per_step_and_a_summary(tmp_path: Path) -> None:
    done = grpo(*small_run(2), "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [line["type"] for line in lines] == ["step", "step", "step", "summary"]
    assert [line["step"] for line in lines[:3]] == [0, 1, 2]
    assert lines[-1]["after"]["n"] == 6
    assert done.stderr == ""


def test_quiet_prints_the_folder_alone(tmp_path: Path) -> None:
    done = grpo(*small_run(1), "-q", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert tmp_path / done.stdout.strip() == only_run(tmp_path)


@pytest.mark.parametrize("name", ["grpo", "dr_grpo"])
def test_the_other_recipes_train(tmp_path: Path, name: str) -> None:
    done = grpo("train", name, *small_run(2)[2:], cwd=tmp_path)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "sets",
    [
        ("overlong={kind: mask}", "sampling.max_tokens=12"),
        ("optim.epochs_per_batch=2", "kl.beta=0.1", "advantage.scale=batch"),
        ("filter={kind: none}", "aggregate={kind: constant}", "learner.micro_batch_tokens=64"),
    ],
)
def test_other_settings_train(tmp_path: Path, sets: tuple[str, ...]) -> None:
    done = grpo(*small_run(2, *sets), "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr


def test_a_loss_that_is_not_finite_stops_the_run_and_takes_no_step(tmp_path: Path) -> None:
    # A learning rate this large makes the second step's log-probabilities NaN.
    args = small_run(6, "optim.lr=1e30", "optim.max_grad_norm=1e30", "checkpoint.every=1")
    failed = grpo(*args, cwd=tmp_path)
    assert failed.returncode == 3
    assert "error[GR301]" in failed.stderr
    assert "Traceback" not in failed.stderr
    run = only_run(tmp_path)
    info = json.loads((run / "run.json").read_text())
    assert info["status"] == "failed"
    assert "GR301" in info["reason"]
