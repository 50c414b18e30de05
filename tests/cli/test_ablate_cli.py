"""`grpo ablate --dry-run` and `grpo runs watch|ui` as real processes, without training."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest


def grpo(cwd: Path, *args: str, **env: str) -> subprocess.CompletedProcess[str]:
    clean = {
        k: v for k, v in os.environ.items() if not k.startswith(("MLFLOW_", "GRPO_", "COLUMNS"))
    }
    return subprocess.run(
        [sys.executable, "-m", "grpo_cli", *args],
        cwd=cwd,
        env={**clean, "NO_COLOR": "1", "MLFLOW_TRACKING_URI": "none", **env},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_a_dry_run_shows_the_plan_and_writes_nothing(tmp_path: Path) -> None:
    done = grpo(tmp_path, "ablate", "--axis", "std_norm", "--seeds", "3", "--dry-run")
    assert done.returncode == 0, done.stderr
    for text in (
        "control std_norm-group",
        "eval/accuracy@final, decided before the run",
        "advantage.scale=none",
        "9 = 3 arms x 3 seeds",
        "from a default; no earlier run of this setup",
        "detects a true difference of",
    ):
        assert text in done.stdout
    assert "p cannot go below 0.25 (sign flips of 3 pairs; it can from 6 seeds on)" in done.stdout
    assert done.stderr == ""
    assert list(tmp_path.iterdir()) == []


def test_the_plan_as_json_has_every_cell(tmp_path: Path) -> None:
    args = ("ablate", "--axis", "clip", "--arms", "no_op", "--seeds", "3", "--dry-run", "--json")
    done = grpo(tmp_path, *args)
    assert done.returncode == 0, done.stderr
    plan = json.loads(done.stdout)
    assert len(plan["cells"]) == 12
    assert [arm["name"] for arm in plan["arms"]][-1] == "no_op"
    assert plan["mde"] > 0
    assert done.stderr == ""


def test_planning_imports_nothing_heavy(tmp_path: Path) -> None:
    code = (
        "import sys\n"
        "sys.argv = ['grpo', 'ablate', '--axis', 'clip', '--dry-run']\n"
        "from grpo_cli.cli.app import main\n"
        "try:\n    main()\n"
        "except SystemExit as end:\n    assert not end.code, end.code\n"
        "found = {'torch', 'transformers', 'mlflow', 'sympy', 'scipy.stats'} & set(sys.modules)\n"
        "assert not found, found\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("args", "code", "words"),
    [
        (("--axis", "clpi"), "GR107", "did you mean `clip`?"),
        (("--axis", "clip", "--set", "optim.minibatches=1"), "GR222", "ratio is always 1"),
        (("--axis", "objective.high=0.28,0.28"), "GR221", "are the same recipe"),
        (("--axis", "optim.lrr=1,2"), "GR101", "did you mean `optim.lr`?"),
        ((), "GR209", "nothing to compare"),
        (("--axis", "std_norm", "--control", "gruop"), "GR209", "did you mean `group`?"),
        (("--axis", "clip", "--primary", "reward/meen"), "GR209", "did you mean `reward/mean`?"),
        (("--axis", "clip", "--axis", "objective.high=0.3,0.4"), "GR209", "both set `objective"),
    ],
)
def test_what_cannot_be_compared_is_refused_before_anything_runs(
    tmp_path: Path, args: tuple[str, ...], code: str, words: str
) -> None:
    done = grpo(tmp_path, "ablate", *args)
    assert done.returncode == 2
    assert f"error[{code}]" in done.stderr
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_watching_what_is_not_there_says_so(tmp_path: Path) -> None:
    done = grpo(tmp_path, "runs", "watch", "nothing")
    assert done.returncode == 2
    assert "no run or ablation 'nothing'" in done.stderr


def test_the_pages_of_a_store_that_is_not_there_are_refused(tmp_path: Path) -> None:
    done = grpo(tmp_path, "runs", "ui", MLFLOW_TRACKING_URI="")
    assert done.returncode == 2
    assert "no MLflow store at" in done.stderr
    done = grpo(tmp_path, "runs", "ui", "--tracking-uri", "http://u:secret@127.0.0.1:5000")
    assert done.returncode == 2
    assert "secret" not in done.stderr
