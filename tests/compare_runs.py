"""Run folders with known scores, written through the real `RunDir`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from grpo_cli.evaluate import summarise
from grpo_cli.recipe.schema import Recipe
from grpo_cli.rundir import RunDir
from grpo_cli.types import EvalRow, Finish, RunStatus, Status, StepRecord

TREE: dict[str, Any] = {
    "setup": "tiny",
    "objective": {"kind": "clip"},
    "optim": {"lr": 1e-3, "steps": 8, "minibatches": 2},
    "model": {"id": "tiny"},
    "task": {"kind": "arithmetic"},
    "verifier": {"name": "exact_integer"},
    "sampling": {"prompts_per_step": 2, "group_size": 2, "max_tokens": 8},
    "eval": {"every": 4, "num_questions": 40, "samples_per_question": 2},
}
EVAL_STEPS = (0, 4, 8)


def recipe(**changes: Any) -> Recipe:
    """The recipe with nodes merged in: `recipe(objective={"high": 0.3})`."""
    tree = {key: dict(node) if isinstance(node, dict) else node for key, node in TREE.items()}
    for key, node in changes.items():
        old = tree.get(key)
        tree[key] = {**old, **node} if isinstance(old, dict) and isinstance(node, dict) else node
    return Recipe.model_validate(tree)


def rows(
    accuracy: float, seed: int, num: int = 40, truncated: float = 0.0, unparsed: float = 0.0
) -> list[EvalRow]:
    """Two answers to each of `num` questions, exactly this accuracy in all (to half an answer).

    Of the wrong answers the given shares of all are truncated or cannot be read.
    """
    total = 2 * num
    right = round(accuracy * total)
    order = np.random.default_rng([seed, 7]).permutation(total)
    kinds = ["right"] * right + ["cut"] * round(truncated * total)
    kinds += ["unread"] * round(unparsed * total)
    kinds += ["wrong"] * (total - len(kinds))
    found = []
    for place, index in enumerate(order):
        kind = kinds[index]
        found.append(
            EvalRow(
                f"q{place // 2}",
                f"q{place // 2}",
                place % 2,
                float(kind == "right"),
                Status.UNPARSED if kind == "unread" else Status.OK,
                5,
                Finish.LENGTH if kind == "cut" else Finish.STOP,
                "16",
            )
        )
    return found


def write_run(
    root: Path,
    name: str,
    seed: int,
    accuracy: float,
    *,
    recipe_name: str = "grpo",
    changes: Mapping[str, Any] | None = None,
    identity: Mapping[str, str] | None = None,
    status: RunStatus | None = RunStatus.DONE,
    reason: str | None = None,
    stop_at: int = 8,
    tokens_per_step: int = 100,
    scalars: Mapping[str, float] | None = None,
    steps: Sequence[int] = range(9),
    truncated: float = 0.0,
    unparsed: float = 0.0,
    device: str = "cpu",
) -> Path:
    """A run that rises from 0.2 to `accuracy`. `status` None leaves it as a killed run does."""
    # Nobody pulls a plug here, and syncing every line takes most of the time.
    with (
        mock.patch("os.fsync"),
        RunDir.open(
            root,
            recipe_name=recipe_name,
            name=name,
            seed=seed,
            recipe=recipe(**(changes or {})),
            origins={},
            sources={},
            command=["grpo", "train"],
            identity=identity or {"model": "m1", "verifier": "v1"},
        ) as run,
    ):
        run.note_environment({"device": device})
        last = steps[-1]
        for step in steps:
            if step > stop_at:
                break
            found: dict[str, float] = {}
            if step > 0:
                found = {
                    "reward/mean": 0.2 + 0.01 * step,
                    "group/zero_variance_frac": 0.5,
                    "completion/mean_length": 8.0,
                    "completion/mean_length_right": 6.0,
                    "completion/mean_length_wrong": 9.0,
                    "completion/truncated_frac": 0.1,
                    "policy/entropy": 1.2,
                    "ratio/clipped_low_frac": 0.01,
                    "ratio/clipped_high_frac": 0.02,
                    "mismatch/logp_abs_mean": 1e-6,
                    "progress/tokens_generated": float(tokens_per_step * step),
                    "progress/prompts_seen": 2.0 * step,
                    "time/rollout_s": 0.5,
                    "time/verify_s": 0.1,
                    "time/learner_s": 0.4,
                    **(scalars or {}),
                }
            if step in (0, last // 2, last):
                share = step / last
                now = 0.2 + (accuracy - 0.2) * share
                answers = rows(now, seed, truncated=truncated * share, unparsed=unparsed * share)
                run.write_eval(step, answers)
                found |= summarise(answers)
            run.append(StepRecord(step, 1_700_000_000_000 + step, found))
        if status is not None:
            run.set_status(status, reason)
        return run.path


def write_arm(root: Path, name: str, accuracies: Sequence[float], **more: Any) -> list[Path]:
    """One run per accuracy, with the seeds 0, 1, ..."""
    return [write_run(root, name, seed, acc, **more) for seed, acc in enumerate(accuracies)]


def write_plan(folder: Path, runs: Mapping[str, Sequence[Path]], control: str, **more: Any) -> None:
    """The `plan.json` of an ablation whose cells are these runs."""
    cells = [
        {"arm": arm, "seed": seed, "run": path.relative_to(folder).as_posix()}
        for arm, paths in runs.items()
        for seed, path in enumerate(paths)
    ]
    plan = {
        "version": 1,
        "name": folder.name,
        "hash": "0" * 64,
        "recipe": "grpo",
        "setup": "tiny",
        "design": "grid",
        "budget": None,
        "arms": [{"name": arm} for arm in runs],
        "control": control,
        "axes": [{"name": "clip", "keys": ["objective"]}],
        "primary": {"metric": "eval/accuracy", "at": "final"},
        "cells": cells,
        **more,
    }
    (folder / "plan.json").write_text(json.dumps(plan))
