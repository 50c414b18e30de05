"""`grpo report` as a process: what it writes and how it fails."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.health_runs import explained_run, two_groups


def grpo(*args: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("MLFLOW_", "GRPO_"))}
    return subprocess.run(
        [sys.executable, "-m", "grpo_cli", *args],
        cwd=cwd,
        env={**clean, "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.fixture(scope="module")
def cwd(tmp_path_factory: pytest.TempPathFactory) -> Path:
    cwd = tmp_path_factory.mktemp("report")
    explained_run(cwd / "runs", two_groups())
    return cwd


def test_a_page_is_written_and_the_run_left_as_it_was(cwd: Path) -> None:
    before = {p: p.stat().st_mtime_ns for p in (cwd / "runs").rglob("*")}
    done = grpo("report", "grpo/grpo", "--html", "new/page.html", cwd=cwd)
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    assert done.stderr == "wrote new/page.html\n"
    text = (cwd / "new" / "page.html").read_text()
    assert text.lstrip().startswith("<!doctype html>")
    assert text.rstrip().endswith("</html>")
    assert {p: p.stat().st_mtime_ns for p in (cwd / "runs").rglob("*")} == before


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("grpo/grpo", "--html", "."), "name another file"),
        (("nothing", "--html", "page.html"), "no run or ablation 'nothing'"),
        (("grpo/grpo",), "--html"),
    ],
)
def test_what_cannot_be_written_is_one_message(
    cwd: Path, words: tuple[str, ...], told: str
) -> None:
    done = grpo("report", *words, cwd=cwd)
    assert done.returncode == 2
    assert told in done.stderr
    assert "Traceback" not in done.stderr
