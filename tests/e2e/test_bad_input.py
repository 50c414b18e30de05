"""Wrong commands: one clear error, the right exit code, nothing lost, no traceback."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from grpo_cli.tiny import TINY_DIR
from tests.e2e.conftest import fingerprint, grpo, only_run, small_run


def refused(done: subprocess.CompletedProcess, code: str, *words: str, status: int = 2) -> None:
    assert done.returncode == status, done.stderr
    assert f"error[{code}]" in done.stderr
    assert "Traceback" not in done.stderr + done.stdout
    for word in words:
        assert word in done.stderr


@pytest.mark.parametrize(
    ("args", "code", "words"),
    [
        (["--set", "objective.hgih=0.3"], "GR101", ["did you mean `high`", "--set #1"]),
        (["--set", "optim.lr=fast"], "GR102", ["optim.lr", "a number"]),
        (["--set", "sampling.group_size=1"], "GR102", ["sampling.group_size", "at least 2"]),
        (["--set", "sampling.max_tokens=0"], "GR102", ["sampling.max_tokens", "at least 1"]),
        (["--set", "optim.minibatches=99"], "GR110", ["optim.minibatches"]),
        (["--set", "optim.lr"], "GR111", ["KEY=VALUE"]),
        (["--setup", "tinny"], "GR107", ["did you mean `tiny`"]),
        (["--set", "verifier.name=exact_intger"], "GR205", ["exact_integer"]),
        (["--name", "../up"], "GR209", ["../up"]),
        (["--set", "optim.betas=[2, 3]"], "GR102", ["optim.betas.0", "below 1"]),
    ],
)
def test_refused_before_anything_is_loaded(
    tmp_path: Path, args: list[str], code: str, words: list[str]
) -> None:
    start = time.monotonic()
    refused(grpo("train", "dapo", *args, cwd=tmp_path), code, *words)
    assert time.monotonic() - start < 10
    assert not list(tmp_path.glob("runs/*/*/*"))


def test_unknown_recipe(tmp_path: Path) -> None:
    refused(grpo("train", "dapoo", cwd=tmp_path), "GR107", "did you mean `dapo`")
    refused(grpo("train", "my/own.yaml", cwd=tmp_path), "GR107", "my/own.yaml")


def test_unreadable_yaml_names_the_line(tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_text("setup: tiny\nobjective: {kind: clip\n")
    refused(grpo("train", "bad.yaml", cwd=tmp_path), "GR104", "bad.yaml:")


def test_unknown_model_says_what_to_pass(tmp_path: Path) -> None:
    args = ["--set", "model.id=nobody/nothing"]
    done = grpo("train", "dapo", *args, cwd=tmp_path, HF_HUB_OFFLINE="1")
    refused(done, "GR201", "model.id=DIR")


def test_model_folder_without_weights(tmp_path: Path) -> None:
    shutil.copytree(TINY_DIR, tmp_path / "model")
    (tmp_path / "model" / "model.safetensors").unlink()
    done = grpo("train", "dapo", "--set", "model.id=model", cwd=tmp_path)
    refused(done, "GR201", "no weights")


def test_runs_folder_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("")
    refused(grpo("train", "dapo", cwd=tmp_path), "GR202", "runs")


@pytest.mark.slow
def test_a_flipped_byte_in_a_checkpoint(whole_run: Path, tmp_path: Path) -> None:
    shutil.copytree(whole_run / "runs", tmp_path / "runs", symlinks=True)
    run = only_run(tmp_path)
    info = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps({**info, "status": "stopped"}))
    newest = run / "checkpoints" / "step-000006"
    weights = newest / "adapter" / "adapter_model.safetensors"
    damaged = bytearray(weights.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    weights.write_bytes(damaged)
    lines = (run / "metrics.jsonl").read_text()
    done = grpo(*small_run(6), cwd=tmp_path)
    refused(done, "GR204", "adapter_model.safetensors", "step-000006", "--restart")
    assert (run / "metrics.jsonl").read_text() == lines
    # What the hint says works: without the damaged folder the run goes on from the one before.
    shutil.rmtree(newest)
    assert grpo(*small_run(6), cwd=tmp_path).returncode == 0
    assert fingerprint(run) == fingerprint(only_run(whole_run))


def test_a_run_folder_in_use(tmp_path: Path) -> None:
    args = [sys.executable, "-m", "grpo_cli", *small_run(500), "--tracking-uri", "none"]
    with subprocess.Popen(
        args, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as first:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and not list(tmp_path.glob("runs/*/*/*/run.json")):
            time.sleep(0.05)
        try:
            refused(grpo(*small_run(500), cwd=tmp_path), "GR203", str(first.pid))
        finally:
            first.kill()


def test_a_changed_model_does_not_continue_the_run(tmp_path: Path) -> None:
    shutil.copytree(TINY_DIR, tmp_path / "model")
    assert grpo(*small_run(1, "model.id=model"), cwd=tmp_path).returncode == 0
    config = tmp_path / "model" / "generation_config.json"
    config.write_text(config.read_text() + "\n")
    refused(grpo(*small_run(1, "model.id=model"), cwd=tmp_path), "GR208", "model", "--restart")


def test_model_text_cannot_write_to_the_terminal(tmp_path: Path) -> None:
    (tmp_path / "esc.yaml").write_text(
        'extends: dapo\nsummary: "\\e]0;title\\a[bold]x[/nope] \\u202e"\n'
    )
    done = grpo("train", "esc.yaml", *small_run(1)[2:], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert not {"\x1b", "\x07", "\u202e"} & set(done.stderr + done.stdout)
    assert "[bold]x[/nope]" in done.stderr


def test_a_verifier_that_always_fails_is_not_a_finished_run(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    code = "def verify(text, reference):\n    raise ValueError('always')\n"
    (tmp_path / "mine" / "verifier.py").write_text(code)
    done = grpo(*small_run(1, "verifier.name=./mine"), cwd=tmp_path)
    refused(done, "GR304", "ValueError: always", status=3)
    assert json.loads((only_run(tmp_path) / "run.json").read_text())["status"] == "failed"


def test_the_vocabulary_projection_does_not_train(tmp_path: Path) -> None:
    refused(grpo(*small_run(1, "lora.targets=[lm_head]"), cwd=tmp_path), "GR201", "lora.targets")
    assert not list(tmp_path.glob("runs/*/*/*")), "a refused run leaves no folder"


@pytest.mark.slow
def test_a_reader_that_goes_away_does_not_end_the_run(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "grpo_cli", *small_run(3), "--tracking-uri", "none", "--json"]
    with subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as run:
        assert run.stdout
        assert run.stdout.readline().startswith(b"{")
        run.stdout.close()
        run.wait(timeout=100)
    assert json.loads((only_run(tmp_path) / "run.json").read_text())["status"] == "done"


def test_a_run_whose_records_are_gone_is_damaged(whole_run: Path, tmp_path: Path) -> None:
    shutil.copytree(whole_run / "runs", tmp_path / "runs", symlinks=True)
    run = only_run(tmp_path)
    rows = (run / "eval" / "step-000006.jsonl").read_text()
    (run / "eval" / "step-000006.jsonl").write_text("nonsense\n")
    refused(grpo(*small_run(6), cwd=tmp_path), "GR204", "step-000006.jsonl:1")
    (run / "eval" / "step-000006.jsonl").write_text(rows)
    (run / "metrics.jsonl").unlink()
    refused(grpo(*small_run(6), cwd=tmp_path), "GR204", "metrics.jsonl", "--restart")


@pytest.mark.slow
def test_a_smaller_cut_goes_on_with_the_same_run(tmp_path: Path) -> None:
    assert grpo(*small_run(2), cwd=tmp_path).returncode == 0
    again = grpo(*small_run(2, "learner.micro_batch_tokens=100"), cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    assert "already finished" in again.stdout
