"""Top-p and top-k with the sampling mask through `grpo train` and `grpo eval`."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from grpo_cli.cli.app import app
from grpo_cli.errors import GrpoError
from grpo_cli.health.panel import describe
from tests.e2e.conftest import SMALL, fingerprint, interrupted_after

MASK = ("sampling.top_p=0.9", "sampling.keep_sampling_mask=true")
STEPS = (*SMALL, "optim.steps=3", "optim.minibatches=2", "checkpoint.every=1", "eval.every=0")


@pytest.fixture(autouse=True)
def no_tracker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "none")


def train(root: Path, *sets: str, recipe: str = "grpo") -> tuple[int, Path]:
    """Exit code and run folder."""
    words = [w for s in (*STEPS, *sets) for w in ("--set", s)]
    done = CliRunner().invoke(app, ["train", recipe, "-q", "--runs-dir", str(root), *words])
    return done.exit_code, next(iter(root.glob("*/*/s*")), root)


def records(run: Path) -> list[dict[str, float]]:
    lines = (run / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line)["scalars"] for line in lines]


def rollouts(run: Path, step: int) -> list[dict[str, Any]]:
    with gzip.open(run / "rollouts" / f"step-{step:06d}.jsonl.gz", "rt") as stream:
        return [json.loads(line) for line in stream]


@pytest.mark.parametrize(
    ("recipe", "sets"),
    [
        ("grpo", MASK),
        ("deepseek_v32", ("sampling.top_k=3", *MASK, "kl.beta=0.01")),
        ("dapo", ("sampling.top_k=4", MASK[1])),
    ],
)
def test_sampler_and_learner_share_the_distribution(
    tmp_path: Path, recipe: str, sets: tuple[str, ...]
) -> None:
    code, run = train(tmp_path, *sets, recipe=recipe)
    assert code == 0
    for step, scalars in enumerate(records(run)[1:], 1):
        for name in scalars:
            describe(name)
        assert scalars["mismatch/logp_abs_mean"] < 1e-5
        assert scalars["mismatch/logp_abs_max"] < 1e-4
        assert scalars["canary/logp_abs_mean"] < 1e-4
        rows = rollouts(run, step)
        assert all(len(r["support_size"]) == len(r["token_ids"]) for r in rows)
        trained = [n for r in rows if r["learner_logp"] for n in r["support_size"]]
        assert scalars["policy/support_mean"] == pytest.approx(sum(trained) / len(trained))
        ones = trained.count(1) / len(trained)
        assert scalars["policy/support_one_frac"] == pytest.approx(ones)
        # A token without a choice has probability 1 on both sides.
        for row in rows:
            for size, logp in zip(row["support_size"], row["sampler_logp"], strict=True):
                assert size > 1 or logp == 0


def test_a_run_without_a_mask_has_nothing_of_it(tmp_path: Path) -> None:
    code, run = train(tmp_path)
    assert code == 0
    assert not [n for scalars in records(run) for n in scalars if "support" in n]
    assert not [r for r in rollouts(run, 1) if "support_size" in r]


def test_an_interrupted_run_continues_to_the_same_bits(tmp_path: Path) -> None:
    code, whole = train(tmp_path / "whole", *MASK)
    assert code == 0
    with interrupted_after(2):
        assert train(tmp_path / "cut", *MASK)[0] != 0
    code, cut = train(tmp_path / "cut", *MASK)
    assert code == 0
    assert fingerprint(cut) == fingerprint(whole)


def test_an_evaluation_draws_as_training_does(tmp_path: Path) -> None:
    """`grpo eval` of the last step gives the run's own held-out accuracy, and says how it drew."""
    code, run = train(tmp_path, *MASK)
    assert code == 0
    args = ["eval", str(run), "--k", "2", "--runs-dir", str(tmp_path), "--json"]
    done = CliRunner().invoke(app, args)
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found["top_p"] == 0.9
    (policy,) = found["policies"]
    assert policy["figures"]["avg@2"]["mean"] == records(run)[-1]["eval/accuracy"]


@pytest.mark.parametrize(
    ("sets", "code"),
    [
        (MASK[:1], "GR110"),
        (("sampling.top_k=5",), "GR110"),
        (MASK[1:], "GR110"),
        ((*MASK, "engine.kind=vllm"), "GR241"),
        (("sampling.top_p=0", MASK[1]), "GR102"),
        (("sampling.top_k=1", MASK[1]), "GR102"),
    ],
)
def test_refusals(tmp_path: Path, sets: tuple[str, ...], code: str) -> None:
    words = [w for s in sets for w in ("--set", s)]
    done = CliRunner().invoke(app, ["train", "grpo", "-q", "--runs-dir", str(tmp_path), *words])
    assert isinstance(done.exception, GrpoError), done.output
    assert done.exception.exit_code == 2
    (problem,) = done.exception.problems
    assert problem.code == code
    if code in ("GR110", "GR241"):
        assert "keep_sampling_mask" in problem.message
        assert "leave" in f"{problem.message} {problem.hint}"
    assert not list(tmp_path.glob("*/*/s*")), "a refused run leaves no folder"
