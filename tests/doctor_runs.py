"""Run folders whose metrics, rollouts and held-out answers tell of one fault, or of none."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from grpo_cli.evaluate import summarise
from grpo_cli.recipe.load import load
from grpo_cli.rundir import RunDir
from grpo_cli.types import EvalRow, Finish, RunStatus, Status, StepRecord
from tests.health_runs import row

QUESTIONS = 60
Curve = float | tuple[float, float] | Callable[[int], float]
"""A constant, a straight line from the first to the last step, or any function of the step."""

HEALTHY: dict[str, Curve] = {
    "reward/mean": (0.35, 0.68),
    "reward/accuracy": (0.35, 0.7),
    "group/mixed_frac": (0.95, 0.8),
    "group/all_right_frac": (0.0, 0.15),
    "group/all_wrong_frac": (0.05, 0.05),
    "group/zero_variance_frac": (0.05, 0.2),
    "group/rounds": 1.0,
    "group/effective": 8.0,
    "completion/mean_length": (17.0, 24.0),
    "completion/mean_length_right": (21.0, 27.0),
    "completion/mean_length_wrong": (15.0, 24.0),
    "completion/truncated_frac": 0.05,
    "verifier/unparsed_frac": 0.05,
    "verifier/error_frac": 0.0,
    "verifier/timeout_frac": 0.0,
    "policy/entropy": (0.26, 0.12),
    "ratio/p99": 1.02,
    "ratio/clipped_low_frac": 0.001,
    "ratio/clipped_high_frac": 0.0,
    "mismatch/logp_abs_mean": 2e-7,
    "mismatch/k3": 1e-13,
    "mismatch/rho_beyond_2_frac": 0.0,
    "canary/moved": lambda step: 0.03 * step,
    "optim/grad_norm": 0.15,
    "optim/nonfinite": 0.0,
    "loss/masked_sequences": 0.0,
}
"""As in a sound run of the tiny world."""

NOISY = {"reward/mean": 0.04, "reward/accuracy": 0.04, "group/mixed_frac": 0.04}
"""Standard deviation from step to step."""


@dataclass(frozen=True, slots=True)
class Samples:
    """What the rollouts of a step hold: 8 groups of 8."""

    right: int = 4
    """Right answers in every group."""
    tokens_right: int = 20
    tokens_wrong: int = 15
    repeats: bool = False
    """All wrong answers of a group are the same text."""
    paid_wrong: int = 0
    """Of the right answers, how many do not hold the reference."""
    cut: int = 0
    """Of the wrong answers, how many the limit cut off."""
    failed: int = 0
    """Verdicts that are errors."""

    def rows(self) -> list[dict[str, Any]]:
        """The rows of the step."""
        return [self._row(group, k) for group in range(8) for k in range(8)]

    def _row(self, group: int, k: int) -> dict[str, Any]:
        prompt = f"p{group}"
        if k >= 8 - self.failed:
            return row(prompt, k, None, 10, 0.0, detail="boom")
        if k < self.right:
            text = "7+7=15#15" if k < self.paid_wrong else "7+9=16#16"
            return row(prompt, k, 1.0, self.tokens_right, 0.5, completion=text)
        text = "#15" if self.repeats else f"7+9={20 + k}#{20 + k}"
        finish = "length" if k - self.right < self.cut else "stop"
        return row(prompt, k, 0.0, self.tokens_wrong, -0.5, completion=text, finish=finish)


@dataclass(frozen=True, slots=True)
class Story:
    """A run that departs from the healthy one in a few things."""

    metrics: Mapping[str, Curve | None]
    """None takes the metric out of the record."""
    early: Samples = Samples()
    late: Samples = Samples(right=5, tokens_right=26, tokens_wrong=24)
    held_out: tuple[float, ...] = (0.36, 0.6, 0.72)
    """Accuracy at evenly spaced evaluations, the first at step 0; two of them at least."""
    steps: int = 24
    recipe: str = "dapo"
    sets: Sequence[str] = ()
    reason: str | None = None
    """Why the run failed."""


SOUND = Story({})


def write_story(root: Path, story: Story, name: str = "tiny") -> Path:
    """The run folder that tells the story."""
    loaded = load(story.recipe, sets=[f"optim.steps={story.steps}", *story.sets])
    curves = {**HEALTHY, **story.metrics}
    with (
        mock.patch("os.fsync"),
        RunDir.open(
            root,
            recipe_name=loaded.name,
            name=name,
            seed=0,
            recipe=loaded.recipe,
            origins=loaded.origins,
            sources=loaded.sources,
            command=["grpo", "train"],
            identity={"model": "m1", "verifier": "v1"},
        ) as run,
    ):
        for step in range(story.steps + 1):
            found = {} if step == 0 else _scalars(curves, step, story.steps)
            found |= _evaluated(run, story, step)
            if step:
                early = step <= story.steps // 2
                run.write_rollouts(step, (story.early if early else story.late).rows())
            run.append(StepRecord(step, 1_700_000_000_000 + step, found))
        failed = story.reason is not None
        run.set_status(RunStatus.FAILED if failed else RunStatus.DONE, story.reason)
        return run.path


def _scalars(curves: Mapping[str, Curve | None], step: int, steps: int) -> dict[str, float]:
    found = {}
    noise = np.random.default_rng(step)
    for name, curve in curves.items():
        if curve is None:
            continue
        if callable(curve):
            value = curve(step)
        elif isinstance(curve, tuple):
            value = curve[0] + (curve[1] - curve[0]) * (step - 1) / max(1, steps - 1)
        else:
            value = curve
        found[name] = value + NOISY.get(name, 0.0) * float(noise.standard_normal())
    return found


def _evaluated(run: RunDir, story: Story, step: int) -> dict[str, float]:
    """Four answers to each of 60 questions, the easy ones right."""
    last = len(story.held_out) - 1
    due = {round(k * story.steps / last): accuracy for k, accuracy in enumerate(story.held_out)}
    if step not in due:
        return {}
    right = round(due[step] * QUESTIONS)
    rows = [
        EvalRow(f"q{q}", f"q{q}", k, float(q < right), Status.OK, 9, Finish.STOP, "#16")
        for q in range(QUESTIONS)
        for k in range(4)
    ]
    run.write_eval(step, rows)
    return summarise(rows)
