"""`grpo recipe explain`, warnings, and an objective from a file of one's own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from grpo_cli.recipe import locate

PLUGIN = """
from typing import ClassVar, Literal

from grpo_cli.objective.base import Objective, clip_metrics
from grpo_cli.types import TokenLoss, Tokens


class Halfway(Objective):
    kind: Literal["halfway"] = "halfway"
    source: ClassVar[str] = "a test"

    def __call__(self, x: Tokens) -> TokenLoss:
        ratio_T = (x.logp_T - x.old_logp_T).exp()
        never_T = ratio_T < 0
        ell_T = -(ratio_T + x.logp_T) / 2 * x.adv_T
        return TokenLoss(ell_T, clip_metrics(never_T, never_T))

    def formula(self) -> str:
        return "-(r + log pi) / 2 A"
"""


def run(*args: str, cwd: Path | None = None) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, *args],
        cwd=cwd,
        env={**os.environ, "NO_COLOR": "1", "MLFLOW_TRACKING_URI": "none"},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )


def grpo(*args: str, cwd: Path | None = None) -> subprocess.CompletedProcess:
    return run("-m", "grpo_cli", *args, cwd=cwd)


@pytest.fixture
def plugin(tmp_path: Path) -> Path:
    file = tmp_path / "halfway.py"
    file.write_text(PLUGIN)
    (tmp_path / "mine.yaml").write_text("extends: grpo\nsetup: tiny\nobjective: {kind: halfway}\n")
    return file


def test_explain_shows_the_numbers_and_the_sources() -> None:
    done = grpo("recipe", "explain", "gspo", "--set", "objective.high=0.0007")
    assert done.returncode == 0, done.stderr
    assert "clip(s, 0.9997, 1.0007)" in done.stdout
    assert "arXiv:2507.18071" in done.stdout
    assert "warning" not in done.stderr


def test_explain_as_json_covers_every_recipe() -> None:
    for name in locate.recipe_names()[::5]:
        parts = json.loads(grpo("recipe", "explain", name, "--json").stdout)["parts"]
        assert {"loss", "ell", "A", "w", "KL"} <= {part["symbol"] for part in parts}


@pytest.mark.parametrize(
    ("sets", "code"),
    [
        (["optim.minibatches=1"], "GW401"),
        (["aggregate={kind: token_mean}"], "GW402"),
        (["correction={kind: mis_seq}", "sampling.max_tokens=4096"], "GW403"),
    ],
)
def test_what_is_known_to_mislead_is_a_warning(sets: list[str], code: str) -> None:
    args = [part for one in sets for part in ("--set", one)]
    done = grpo("recipe", "explain", "gspo", *args)
    assert done.returncode == 0
    assert f"warning[{code}]" in done.stderr


def test_a_plugin_trains(plugin: Path) -> None:
    small = ["sampling.prompts_per_step=4", "eval.num_questions=4", "eval.samples_per_question=2"]
    args = [part for one in (*small, "optim.steps=1") for part in ("--set", one)]
    done = grpo("train", "mine.yaml", "--plugin", "halfway.py", *args, cwd=plugin.parent)
    assert done.returncode == 0, done.stderr
    (run_dir,) = plugin.parent.glob("runs/mine/tiny/*")
    assert json.loads((run_dir / "recipe.json").read_text())["objective"] == {"kind": "halfway"}
    assert len(json.loads((run_dir / "identity.json").read_text())["plugin_halfway"]) == 64
    assert any("Halfway" in file.read_text() for file in (run_dir / "sources").iterdir())


def test_a_plugin_passes_the_contract_suite(plugin: Path) -> None:
    suite = Path(__file__).parents[1] / "contract" / "test_objectives.py"
    args = ["-k", "Halfway and not recipe and not page", "-p", "no:cacheprovider"]
    done = run("-m", "pytest", str(suite), "--objective-plugin", str(plugin), *args)
    assert done.returncode == 0, done.stdout
    assert " passed" in done.stdout


def test_the_recipe_commands_know_plugins_too(plugin: Path) -> None:
    for args in (
        ("validate", "mine.yaml"),
        ("explain", "mine.yaml"),
        ("diff", "mine.yaml", "grpo"),
    ):
        done = grpo("recipe", *args, "--plugin", "halfway.py", cwd=plugin.parent)
        assert done.returncode == 0, done.stderr


def test_a_recipe_without_its_plugin_is_refused(plugin: Path) -> None:
    done = grpo("train", "mine.yaml", cwd=plugin.parent)
    assert "--plugin FILE" in done.stderr
    assert done.returncode == 2
    assert "error[GR102]" in done.stderr
    assert "halfway" in done.stderr


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "no plug-in file"),
        ("x = 1\n", "defines no objective"),
        ("def broken(:\n", "bad.py:1 failed: SyntaxError"),
        ("\nraise KeyError('x')\n", "bad.py:2 failed: KeyError"),
        (PLUGIN.replace("halfway", "clip"), "`clip` exists already"),
    ],
)
def test_a_bad_plugin_is_one_clear_error(tmp_path: Path, text: str | None, words: str) -> None:
    if text is not None:
        (tmp_path / "bad.py").write_text(text)
    done = grpo("train", "dapo", "--plugin", "bad.py", cwd=tmp_path)
    assert done.returncode == 2
    assert "error[GR112]" in done.stderr
    assert words in done.stderr
    assert "Traceback" not in done.stderr
