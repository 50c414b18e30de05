"""`grpo explain` as a process, on a run that really trained."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from grpo_cli.cli.explain import Worst, explain
from grpo_cli.errors import GrpoError
from grpo_cli.health.explain import explain_step
from grpo_cli.health.explain_text import as_json
from grpo_cli.health.tokens import decoder


def grpo(*args: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("MLFLOW_", "GRPO_"))}
    return subprocess.run(
        [sys.executable, "-m", "grpo_cli", *args],
        cwd=cwd,
        env={**clean, "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


@pytest.fixture(scope="module")
def cwd(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one run of two steps, each of two minibatches of 2 and 3 groups."""
    cwd = tmp_path_factory.mktemp("explain")
    settings = {
        "optim.steps": "2",
        "aggregate.kind": "seq_mean",
        "sampling.prompts_per_step": "5",
        "eval.num_questions": "4",
        "eval.every": "0",
    }
    sets = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    done = grpo("train", "dapo", "--tracking-uri", "none", *sets, cwd=cwd)
    assert done.returncode == 0, done.stderr
    return cwd


def test_the_weights_are_those_that_the_update_used(cwd: Path) -> None:
    (run,) = (path.parent for path in cwd.glob("runs/*/*/*/run.json"))
    for step in (1, 2):
        tree = json.loads(as_json(explain_step(run, step), decoder(run)))
        assert tree["notes"] == []
        (record,) = [
            json.loads(line)["scalars"]
            for line in (run / "metrics.jsonl").read_text().splitlines()
            if json.loads(line)["step"] == step
        ]
        used = [g for g in tree["groups"] if g["kept"]]
        assert len(used) == record["group/used"] == 5
        assert [g["minibatch"] for g in used] == [0, 0, 1, 1, 1]
        # Mean over minibatches of sum(w L), and of the number of sequences that w is 1 / (N L) of.
        assert sum(tree["weight_sums"]) / 2 == pytest.approx(record["loss/weight_sum"])
        counts = [1 / (s["weight"] * s["tokens"]) for g in used for s in g["samples"]]
        assert counts == pytest.approx([16] * 16 + [24] * 24)
        assert record["loss/denominator"] == pytest.approx((16 + 24) / 2)
        largest = abs(tree["worst"]["log_rho"])
        assert largest == pytest.approx(record["mismatch/logp_abs_max"], abs=1e-9)
        assert len(tree["worst"]["text"]["token"]) > 0


def test_json_is_one_document_on_stdout(cwd: Path) -> None:
    done = grpo("explain", "dapo/tiny", "--step", "1", "--json", cwd=cwd)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert json.loads(done.stdout)["step"] == 1


def test_a_group_is_shown_sample_by_sample(cwd: Path) -> None:
    done = grpo("explain", "dapo/tiny", "--step", "2", "--worst", "mismatch", cwd=cwd)
    assert done.returncode == 0, done.stderr
    assert re.search("^group [0-4]: ", done.stdout, re.MULTILINE)
    assert "sample 7: " in done.stdout
    assert "worst mismatch: " in done.stdout
    assert "«" in done.stdout


def test_a_missing_step_is_one_message(cwd: Path) -> None:
    done = grpo("explain", "dapo/tiny", "--step", "9", cwd=cwd)
    assert done.returncode == 2
    assert "there are steps 1-2" in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_a_group_that_is_not_there_or_chosen_twice(cwd: Path) -> None:
    runs = cwd / "runs"
    with pytest.raises(GrpoError, match="--group 999"):
        explain("dapo/tiny", step=1, group=999, runs_dir=runs)
    with pytest.raises(GrpoError, match="both choose"):
        explain("dapo/tiny", step=1, group=1, worst=Worst.LENGTH, runs_dir=runs)
