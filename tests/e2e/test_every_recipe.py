"""Every shipped recipe trains: two steps each, in this process (the libraries load once)."""

from __future__ import annotations

import gzip
import json
import math
import statistics
from pathlib import Path

import pytest
from typer.testing import CliRunner

from grpo_cli.cli.app import app
from grpo_cli.health.panel import describe
from grpo_cli.recipe import locate
from tests.e2e.conftest import fingerprint, interrupted_after

QUICK = ("optim.steps=2", "eval.every=0", "eval.num_questions=5", "eval.samples_per_question=2")


@pytest.mark.parametrize("name", locate.recipe_names())
def test_a_shipped_recipe_trains(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "none")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    # The policy waits while a critic trains alone.
    alone = ("critic.pretrain_steps=0",) if name == "vapo" else ()
    sets = [part for one in (*QUICK, *alone) for part in ("--set", one)]
    path = str(locate.recipes_dir() / f"{name}.yaml")
    done = CliRunner().invoke(app, ["train", path, "--json", "--runs-dir", str(tmp_path), *sets])
    assert done.exit_code == 0, done.output
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    steps = [line["scalars"] for line in lines if line["type"] == "step"][1:]
    assert len(steps) == 2
    for scalars in steps:
        assert scalars["optim/updates"] >= 1
        assert scalars["optim/nonfinite"] == 0
        assert math.isfinite(scalars["loss/total"])
        assert scalars["optim/grad_norm"] > 0
        assert 0.5 < scalars["ratio/p50"] < 2
        # The weights of all trainable tokens add up to 1, except where the formula has a constant.
        if name not in ("dr_grpo", "reinforce", "dppo", "rloo"):
            assert scalars["loss/weight_sum"] == pytest.approx(1)


@pytest.mark.parametrize(
    ("recipe", "own"),
    [
        (
            "grpo",
            (
                "kl={beta: 0.1, kind: k3, refresh_every: 2}",
                "filter={kind: zero_variance, pass_rate_ceiling: 0.5}",
            ),
        ),
        ("vapo", ("critic.pretrain_steps=1",)),
        ("self_verify", ()),
    ],
)
def test_state_beyond_weights_survives_an_interruption(
    recipe: str, own: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A renewed reference, the list of solved prompts and a critic come back with the checkpoint;
    verdicts on the own answer need none."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "none")
    sets = [
        *("optim.steps=5", "eval.every=0", "eval.num_questions=4", "eval.samples_per_question=2"),
        *("sampling.prompts_per_step=4", "sampling.group_size=4", "checkpoint.every=2"),
        *own,
    ]
    arguments = [part for one in sets for part in ("--set", one)]

    def train(root: Path) -> tuple[int, dict[str, object]]:
        args = ["train", recipe, "-q", "--runs-dir", str(root), *arguments]
        done = CliRunner().invoke(app, args)
        (run,) = root.glob("*/*/s*")
        return done.exit_code, fingerprint(run)

    code, want = train(tmp_path / "whole")
    assert code == 0
    with interrupted_after(3):
        assert train(tmp_path / "cut")[0] != 0
    code, got = train(tmp_path / "cut")
    assert code == 0
    assert got == want


def test_the_policy_waits_while_the_critic_trains_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "none")
    sets = [
        *("optim.steps=3", "critic.pretrain_steps=2", "checkpoint.every=1", "checkpoint.keep=3"),
        *("eval.every=0", "eval.num_questions=4", "eval.samples_per_question=2"),
        *("sampling.prompts_per_step=4", "sampling.group_size=4"),
    ]
    arguments = [part for one in sets for part in ("--set", one)]
    done = CliRunner().invoke(app, ["train", "vapo", "--runs-dir", str(tmp_path), *arguments])
    assert done.exit_code == 0, done.output
    (run,) = tmp_path.glob("*/*/s*")
    steps = [json.loads(x)["scalars"] for x in (run / "metrics.jsonl").read_text().splitlines()][1:]
    assert [step["optim/updates"] for step in steps] == [0, 0, 2]
    assert [step["optim/update_norm"] > 0 for step in steps] == [False, False, True]
    assert ["ratio/p50" in step for step in steps] == [False, False, True]
    assert all(step["value/loss"] > 0 for step in steps)
    for name in set().union(*steps):
        describe(name)
    adapters = [
        (run / "checkpoints" / f"step-{k:06d}" / "adapter" / "adapter_model.safetensors")
        for k in (1, 2, 3)
    ]
    first, second, third = (path.read_bytes() for path in adapters)
    assert first == second != third
    with gzip.open(run / "rollouts" / "step-000003.jsonl.gz", "rt") as stream:
        for row in map(json.loads, stream):
            assert len(row["value"]) == len(row["token_advantage"]) == len(row["token_ids"])
            assert row["advantage"] == pytest.approx(statistics.fmean(row["token_advantage"]))
    for command in (["doctor", str(run)], ["explain", str(run), "--step", "3"]):
        assert CliRunner().invoke(app, command).exit_code == 0
