"""A mixture of experts through `grpo train`: every kind of replay, continued, refused."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from typer.testing import CliRunner

from grpo_cli.cli.app import app
from grpo_cli.errors import GrpoError
from grpo_cli.health.panel import describe
from grpo_cli.health.panel_moe import MOE
from tests.e2e.conftest import fingerprint, interrupted_after
from tests.moe_model import save_moe

SETS = (
    *("optim.steps=3", "optim.minibatches=2", "optim.lr=0.01", "checkpoint.every=1"),
    *("sampling.prompts_per_step=4", "sampling.group_size=4", "sampling.max_tokens=12"),
    *("eval.every=0", "eval.num_questions=4", "eval.samples_per_question=1"),
    # Random weights answer nothing right; the coin gives the advantages.
    "control={kind: random_reward, rate: 0.5}",
)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_moe(tmp_path_factory.mktemp("model"))


@pytest.fixture(autouse=True)
def no_tracker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "none")


def train(root: Path, model: str | Path, *sets: str, recipe: str = "grpo") -> tuple[int, Path]:
    """Exit code and run folder."""
    words = [w for s in (f"model.id={model}", *SETS, *sets) for w in ("--set", s)]
    done = CliRunner().invoke(app, ["train", recipe, "-q", "--runs-dir", str(root), *words])
    return done.exit_code, next(iter(root.glob("*/*/s*")), root)


def records(run: Path) -> list[dict[str, float]]:
    lines = (run / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line)["scalars"] for line in lines]


@pytest.mark.parametrize("replay", ["off", "learner", "sampler"])
@pytest.mark.parametrize("recipe", ["grpo", "gspo"])
def test_it_trains_with_every_replay(tmp_path: Path, model: Path, recipe: str, replay: str) -> None:
    code, run = train(tmp_path, model, f"moe.replay={replay}", "kl.beta=0", recipe=recipe)
    assert code == 0
    base, *steps = records(run)
    assert not [name for name in base if name.startswith("moe/")]
    assert len(steps) == 3
    for scalars in steps:
        assert {info.name for info in MOE} <= set(scalars)
        for name in scalars:
            describe(name)
        # The sampler has the learner's weights: in float32 both choose alike.
        assert scalars["moe/sampler_drift"] == 0
        assert 0 < scalars["moe/update_drift"] < 1
        assert 1 <= scalars["moe/load_imbalance"] <= 4
        assert 0 < scalars["moe/router_entropy"] < math.log(8)
        assert scalars["optim/updates"] == 2


def test_with_the_kl_to_the_base_in_reward_and_in_loss(tmp_path: Path, model: Path) -> None:
    for number, kl in enumerate(("{beta: 0.1, kind: k1_reward}", "{beta: 0.1, kind: k3}")):
        root = tmp_path / str(number)
        code, run = train(root, model, "moe.replay=sampler", f"kl={kl}")
        assert code == 0
        # Policy and base are the same weights before the first update, and route alike.
        first = records(run)[1]
        gap = first["reward/kl_mean" if number == 0 else "policy/kl_base"]
        assert gap == pytest.approx(0, abs=1e-5)


def test_an_interrupted_run_continues_to_the_same_bits(tmp_path: Path, model: Path) -> None:
    code, whole = train(tmp_path / "whole", model, "moe.replay=sampler")
    assert code == 0
    with interrupted_after(2):
        assert train(tmp_path / "cut", model, "moe.replay=sampler")[0] != 0
    code, cut = train(tmp_path / "cut", model, "moe.replay=sampler")
    assert code == 0
    assert fingerprint(cut) == fingerprint(whole)


@pytest.mark.parametrize(
    ("dense", "sets", "said"),
    [
        (True, ("moe.replay=learner",), "GR201"),
        (True, ("moe.replay=sampler",), "GR201"),
        (False, ("moe.replay=sampler", "engine.kind=vllm"), "GR241"),
        (False, ("lora.targets=[gate_proj, up_proj]",), "GR201"),
        (False, ("moe.replay=r3",), "GR102"),
    ],
)
def test_refusals(
    tmp_path: Path,
    model: Path,
    dense: bool,
    sets: tuple[str, ...],
    said: str,
) -> None:
    name = "tiny" if dense else model
    words = [w for s in (f"model.id={name}", *SETS, *sets) for w in ("--set", s)]
    done = CliRunner().invoke(app, ["train", "grpo", "-q", "--runs-dir", str(tmp_path), *words])
    assert isinstance(done.exception, GrpoError), done.output
    assert done.exception.exit_code == 2
    assert [problem.code for problem in done.exception.problems] == [said]
    assert not list(tmp_path.glob("*/*/s*")), "a refused run leaves no folder"
