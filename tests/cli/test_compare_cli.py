"""`grpo compare` as a process: what it prints, how it ends, what it does not import."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.compare_runs import write_arm

HIGH = {"objective": {"high": 0.28}}


def grpo(*args: str, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("MLFLOW_", "GRPO_"))}
    return subprocess.run(
        [sys.executable, "-m", "grpo_cli", *args],
        cwd=cwd,
        env={**clean, "NO_COLOR": "1", **env},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.fixture(scope="module")
def cwd(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `runs`: grpo, dapo (better) and bad (worse), three seeds each."""
    cwd = tmp_path_factory.mktemp("cli")
    root = cwd / "runs"
    base = [0.4, 0.45, 0.4375]
    write_arm(root, "grpo", base)
    up = [0.6, 0.6625, 0.6375]
    write_arm(root, "dapo", up, recipe_name="dapo", changes=HIGH)
    down = [0.3, 0.3375, 0.3375]
    write_arm(root, "bad", down, recipe_name="bad", changes={"kl": {"beta": 1.0}})
    write_arm(root, "other", base, recipe_name="other", changes={"eval": {"num_questions": 4}})
    return cwd


def test_a_verdict_table(cwd: Path) -> None:
    done = grpo("compare", "grpo", "dapo", "bad", cwd=cwd)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert "dapo is better than grpo" in done.stdout
    assert "bad is worse than grpo" in done.stdout
    again = grpo("compare", "grpo", "dapo", "bad", cwd=cwd, PYTHONHASHSEED="7")
    assert again.stdout == done.stdout


def test_fail_on_worse(cwd: Path) -> None:
    assert grpo("compare", "grpo", "bad", "--fail-on", "worse", cwd=cwd).returncode == 1
    assert grpo("compare", "grpo", "dapo", "--fail-on", "worse", cwd=cwd).returncode == 0
    wrong = grpo("compare", "grpo", "dapo", "--fail-on", "better", cwd=cwd)
    assert (wrong.returncode, "GR209" in wrong.stderr) == (2, True)
    undirected = ("--metric", "eval/mean_length", "--fail-on", "worse")
    assert grpo("compare", "grpo", "dapo", *undirected, cwd=cwd).returncode == 2


def test_json_markdown_and_html(cwd: Path, tmp_path: Path) -> None:
    page = tmp_path / "new" / "report.html"
    done = grpo("compare", "grpo", "dapo", "--json", "--html", str(page), cwd=cwd)
    tree = json.loads(done.stdout)
    assert [arm["verdict"] for arm in tree["arms"]] == ["control", "better"]
    assert page.read_text().startswith("<!doctype html>")
    assert done.stderr == f"wrote {page}\n"
    shown = grpo("compare", "grpo", "dapo", "--md", cwd=cwd)
    assert "| dapo | +" in shown.stdout
    assert grpo("compare", "grpo", "--md", "--json", cwd=cwd).returncode == 2
    refused = grpo("compare", "grpo", "--html", str(cwd / "runs"), cwd=cwd)
    assert (refused.returncode, "GR209" in refused.stderr) == (2, True)


def test_an_unfair_comparison_is_refused_and_can_be_forced(cwd: Path) -> None:
    refused = grpo("compare", "grpo", "other", cwd=cwd)
    assert refused.returncode == 2
    assert "GR231" in refused.stderr
    assert "eval.num_questions is 4, not 40" in refused.stderr
    forced = grpo("compare", "grpo", "other", "--allow-diff", cwd=cwd)
    assert forced.returncode == 0
    assert "eval.num_questions is 4, not 40" in forced.stdout


@pytest.mark.parametrize(
    "args",
    [
        ("nothing",),
        ("grpo", "--at", "best"),
        ("grpo", "--at", "3"),
        ("grpo", "--metric", "x"),
        ("grpo", "--baseline", "zz"),
        ("grpo", "--group-by", "zz"),
        ("mlflow:grpo",),
        ("/dev/null",),
        ("[",),
    ],
)
def test_bad_input_is_one_problem_and_no_traceback(cwd: Path, args: tuple[str, ...]) -> None:
    done = grpo("compare", *args, cwd=cwd)
    assert done.returncode == 2
    assert done.stderr.startswith("error[GR2")
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    assert not (cwd / "runs" / "mlflow.db").exists()


def test_a_hundred_runs_take_at_most_three_seconds(tmp_path: Path) -> None:
    """CPU seconds, so that a busy machine does not fail it; and no heavy library is imported."""
    rng = np.random.default_rng(0)
    scalars = {f"more/m{i}": 0.1 * i for i in range(20)}
    for i in range(10):
        write_arm(
            tmp_path / "runs",
            f"arm{i}",
            list(0.4 + rng.normal(0, 0.02, 10)),
            changes={"objective": {"high": 0.2 + i / 100}},
            steps=range(31),
            stop_at=30,
            scalars=scalars,
        )
    code = """
import sys, time
import scipy.special, jinja2
from pathlib import Path
from grpo_cli.compare import compare, html, read, text
start = time.process_time()
found = read.read_targets(["runs"], Path("runs"))
result = compare(found.runs, found.plans)
text.as_text(result), html.as_html(result)
print(len(found.runs), len(result.arms), time.process_time() - start)
heavy = {"torch", "transformers", "mlflow", "datasets", "scipy.stats"} & sys.modules.keys()
assert not heavy, heavy
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    runs, arms, seconds = done.stdout.split()
    assert (runs, arms) == ("100", "10")
    assert float(seconds) <= 3
