"""A whole run with vLLM through the command line, in a process of its own."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest


def grpo(*args: str, cwd: Path, env: dict[str, str] | None = None) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "grpo_cli", *args],
        cwd=cwd, capture_output=True, text=True, timeout=280, env={**os.environ, **(env or {})},
    )  # fmt: skip


SMALL = [
    word
    for change in (
        "sampling.prompts_per_step=4",
        "sampling.group_size=4",
        "eval.num_questions=6",
        "eval.samples_per_question=2",
        "checkpoint.every=1",
        "engine.cpu_cache_gib=0.25",
    )
    for word in ("--set", change)
]


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    cwd = tmp_path_factory.mktemp("vllm")
    args = ("train", "dapo", "--engine", "vllm", "--tracking-uri", "none", *SMALL)
    first = grpo(*args, "--set", "optim.steps=3", cwd=cwd)
    assert first.returncode == 0, first.stderr
    assert "Triton" not in first.stderr, "vLLM's chatter is not ours"
    return next((cwd / "runs/dapo/tiny").iterdir())


def test_sampler_and_learner_agree_at_every_step(run: Path) -> None:
    steps = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()][1:]
    assert len(steps) == 3
    for record in steps:
        scalars = record["scalars"]
        assert scalars["mismatch/logp_abs_mean"] < 1e-4
        assert scalars["canary/logp_abs_mean"] < 1e-4
        assert scalars["mismatch/staleness"] == 0
    assert steps[-1]["scalars"]["canary/moved"] > 0, "the adapter is in effect"


def test_rollouts_hold_both_sides_and_the_version(run: Path) -> None:
    with gzip.open(run / "rollouts/step-000003.jsonl.gz", "rt") as stream:
        rows = [json.loads(line) for line in stream]
    trained = [row for row in rows if row["learner_logp"] is not None]
    assert trained
    for row in trained:
        assert row["learner_logp"] == pytest.approx(row["sampler_logp"], abs=1e-3)
    assert {row["adapter_version"] for row in rows} == {4}, "two updates a step, before step 3"
    assert json.loads((run / "identity.json").read_text())["engine"] == "vllm"


def test_another_engine_does_not_continue_the_run(run: Path) -> None:
    cwd = run.parents[3]
    args = ("train", "dapo", "--engine", "auto", "--tracking-uri", "none", *SMALL)
    other = grpo(*args, "--set", "optim.steps=3", cwd=cwd)
    # Another recipe hash, another folder: nothing of the first run is touched.
    assert other.returncode == 0, other.stderr
    assert len(list((cwd / "runs/dapo/tiny").iterdir())) == 2


def test_a_disturbed_sampler_shows_in_the_panel(tmp_path: Path) -> None:
    done = grpo(
        "train", "dapo", "--engine", "vllm", "--tracking-uri", "none", *SMALL,
        "--set", "optim.steps=1", cwd=tmp_path, env={"GRPO_DISTURB_SAMPLER": "temperature:1.3"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "nothing corrects it" in done.stderr
    run = next((tmp_path / "runs/dapo/tiny").iterdir())
    scalars = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])["scalars"]
    assert scalars["mismatch/logp_abs_mean"] > 0.02
    assert scalars["canary/logp_abs_mean"] < 1e-4, "the engine itself is sound"
