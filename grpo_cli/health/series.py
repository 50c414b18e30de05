"""What `grpo doctor` reads of a run: metrics as series, evaluations, and some rollouts.

Rollouts of a few early and a few late steps are enough, and keep a long run quick to diagnose.
Must not import torch.
"""

from __future__ import annotations

import math
import re
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from grpo_cli.errors import GrpoError
from grpo_cli.evaluate import paired_difference
from grpo_cli.health.thresholds import LEAST_ROLLOUTS, MOST_ROLLOUTS, WINDOW
from grpo_cli.runfiles import (
    RunInfo,
    damaged,
    eval_steps,
    read_eval,
    read_info,
    read_metrics,
    read_rollouts,
    step_files,
)
from grpo_cli.stats import Interval
from grpo_cli.types import StepRecord

_INTEGER = re.compile(r"[+-]?\d+")


@dataclass(frozen=True, slots=True)
class Trend:
    """A metric's mean over the first and over the last quarter of its steps.

    `noise` is the standard deviation of one step around the local level, from differences of
    neighbouring steps (which a trend hardly touches); `z` is the change in standard errors.
    """

    early: float
    late: float
    noise: float
    z: float
    first_step: int
    last_step: int

    @property
    def change(self) -> float:
        """Late minus early."""
        return self.late - self.early


@dataclass(frozen=True, slots=True)
class Series:
    """The finite values of one metric and their steps."""

    steps: tuple[int, ...]
    values: tuple[float, ...]

    def __len__(self) -> int:
        return len(self.values)

    @property
    def mean(self) -> float:
        """Over all steps; NaN when there are none."""
        return float(np.mean(self.values)) if self.values else math.nan

    @property
    def median(self) -> float:
        """Over all steps; NaN when there are none."""
        return float(np.median(self.values)) if self.values else math.nan

    @property
    def early(self) -> float:
        """Mean of the first quarter."""
        return float(np.mean(self.values[: self._window])) if self.values else math.nan

    @property
    def late(self) -> float:
        """Mean of the last quarter."""
        return float(np.mean(self.values[-self._window :])) if self.values else math.nan

    @property
    def _window(self) -> int:
        return max(1, round(WINDOW * len(self.values)))

    def trend(self) -> Trend | None:
        """None with fewer than 4 values: then there is no noise to compare with."""
        if len(self.values) < 4:
            return None
        noise = float(np.std(np.diff(self.values), ddof=1)) / math.sqrt(2)
        error = noise * math.sqrt(2 / self._window)
        change = self.late - self.early
        z = standard_errors(change, error)
        return Trend(self.early, self.late, noise, z, self.steps[0], self.steps[-1])

    def smoothed(self) -> Series:
        """Means over the window that starts at each step, so that one odd step does not count."""
        last = len(self.values) - self._window
        means = (np.mean(self.values[i : i + self._window]) for i in range(last + 1))
        return Series(self.steps[: last + 1], tuple(float(mean) for mean in means))

    def first_step_where(self, low: float) -> int | None:
        """The first step with a value of at least `low`."""
        return next((s for s, v in zip(self.steps, self.values, strict=True) if v >= low), None)


@dataclass(frozen=True, slots=True)
class Rows:
    """What the completions of some steps show. Counts, so that steps add up."""

    steps: tuple[int, ...]
    completions: int = 0
    repeatable: int = 0
    """Wrong completions of the groups that have several: where exploring could still pay."""
    distinct: int = 0
    """Different texts among them, each group counted by itself."""
    wrong: int = 0
    wrong_truncated: int = 0
    paid: int = 0
    """Completions with a full score whose reference is an integer."""
    paid_without_gold: int = 0
    """Those that hold the reference nowhere in their text."""
    gaps: tuple[float, ...] = ()
    """Of each group with right and wrong answers: mean tokens of the wrong minus of the right."""
    wrong_lengths: tuple[int, ...] = ()
    """Tokens of the wrong answers of those groups."""
    failure: str | None = None
    """What the verifier said when it first failed."""

    @property
    def distinct_frac(self) -> float:
        """Different texts as a share of the wrong completions of a group. Right ones may well
        agree: a short task has one right text."""
        return self.distinct / self.repeatable if self.repeatable else math.nan


def standard_errors(change: float, error: float) -> float:
    """`change / error`; without any noise a change is infinitely clear."""
    if error > 0:
        return change / error
    return math.copysign(math.inf, change) if change else 0.0


class RunSeries:
    """A run folder, read once."""

    def __init__(self, path: Path, info: RunInfo, recipe: dict[str, Any]) -> None:
        self.path = path
        self.info = info
        self.recipe = recipe
        self.records: list[StepRecord] = read_metrics(path)
        self._changes: dict[tuple[int, int], Interval] = {}

    @classmethod
    def open(cls, path: Path) -> RunSeries:
        """Read a run folder.

        Raises:
            GrpoError: GR206 when it is none, GR204 when a file of it cannot be read.
        """
        import json

        info = read_info(path)
        try:
            recipe = json.loads((path / "recipe.json").read_bytes())
            if not isinstance(recipe, dict):
                raise ValueError("it is not a mapping")
        except (OSError, ValueError) as problem:
            raise damaged(path / "recipe.json", f"{problem}") from problem
        return cls(path, info, recipe)

    def setting(self, key: str, default: Any = None) -> Any:
        """The recipe's value of a dotted key; `default` where the recipe has no such key."""
        node: Any = self.recipe
        for part in key.split("."):
            if not isinstance(node, dict) or part not in node:
                return default
            node = node[part]
        return node

    @cached_property
    def trained(self) -> list[StepRecord]:
        """The records of training steps; step 0 is the evaluation of the base model."""
        return [record for record in self.records if record.step > 0]

    def series(self, name: str) -> Series:
        """A metric over the training steps that have a finite value of it."""
        found = [
            (record.step, record.scalars[name])
            for record in self.trained
            if math.isfinite(record.scalars.get(name, math.nan))
        ]
        return Series(tuple(s for s, _ in found), tuple(v for _, v in found))

    def eval_series(self, name: str) -> Series:
        """A metric over the evaluations, that of the base model included."""
        found = [
            (r.step, r.scalars[name])
            for r in self.records
            if math.isfinite(r.scalars.get(name, math.nan))
        ]
        return Series(tuple(s for s, _ in found), tuple(v for _, v in found))

    def held_out_change(self, after_best: bool = False) -> tuple[Interval, int, int] | None:
        """Paired change of the held-out accuracy with its 95 % interval, and its two steps.

        From the first evaluation to the last, or from the best one to the last; None when there are
        not two evaluations whose rows are there.
        """
        scores = self.eval_series("eval/accuracy")
        there = set(eval_steps(self.path))
        steps = [step for step in scores.steps if step in there]
        if len(steps) < 2:
            return None
        start = steps[0]
        if after_best:
            by_step = dict(zip(scores.steps, scores.values, strict=True))
            start = max(steps[:-1], key=lambda step: by_step[step])
        change = self._change(start, steps[-1])
        return None if math.isnan(change.low) else (change, start, steps[-1])

    def _change(self, start: int, end: int) -> Interval:
        """Several rules ask for the same pair, and its files take most of a diagnosis to read."""
        if (start, end) not in self._changes:
            before, after = read_eval(self.path, start), read_eval(self.path, end)
            self._changes[start, end] = paired_difference(before, after)
        return self._changes[start, end]

    @cached_property
    def early_rows(self) -> Rows:
        """The rollouts of the first few steps."""
        return self._rows(self._rollout_steps[: self._num_rows])

    @cached_property
    def late_rows(self) -> Rows:
        """The rollouts of the last few steps, none of them an early one."""
        return self._rows(self._rollout_steps[self._num_rows :][-self._num_rows :])

    @cached_property
    def all_rows(self) -> Rows:
        """The early and the late ones together."""
        one, two = self.early_rows, self.late_rows
        return Rows(
            steps=one.steps + two.steps,
            completions=one.completions + two.completions,
            repeatable=one.repeatable + two.repeatable,
            distinct=one.distinct + two.distinct,
            wrong=one.wrong + two.wrong,
            wrong_truncated=one.wrong_truncated + two.wrong_truncated,
            paid=one.paid + two.paid,
            paid_without_gold=one.paid_without_gold + two.paid_without_gold,
            gaps=one.gaps + two.gaps,
            wrong_lengths=one.wrong_lengths + two.wrong_lengths,
            failure=one.failure or two.failure,
        )

    @property
    def _num_rows(self) -> int:
        quarter = round(WINDOW * len(self._rollout_steps))
        return min(MOST_ROLLOUTS, max(LEAST_ROLLOUTS, quarter))

    @cached_property
    def _rollout_steps(self) -> list[int]:
        """A run that was stopped may have rollouts of a step that is not on record."""
        recorded = {record.step for record in self.trained}
        return [step for step, _ in step_files(self.path / "rollouts") if step in recorded]

    def _rows(self, steps: Sequence[int]) -> Rows:
        groups = [group for step in steps for group in self._groups(step)]
        rows = [row for group in groups for row in group]
        wrong = [row for row in rows if _is_wrong(row)]
        wrong_of = [[row for row in group if _is_wrong(row)] for group in groups]
        several = [group for group in wrong_of if len(group) > 1]
        judged = [row for row in rows if row["score"] == 1 and _gold(row) is not None]
        mixed = [
            group
            for group, lost in zip(groups, wrong_of, strict=True)
            if lost and any(row["score"] == 1 for row in group)
        ]
        return Rows(
            steps=tuple(steps),
            completions=len(rows),
            repeatable=sum(len(group) for group in several),
            distinct=sum(len({row["completion"] for row in group}) for group in several),
            wrong=len(wrong),
            wrong_truncated=sum(row["finish"] == "length" for row in wrong),
            paid=len(judged),
            paid_without_gold=sum(not _holds_gold(row) for row in judged),
            gaps=tuple(
                _mean_tokens(row for row in group if _is_wrong(row))
                - _mean_tokens(row for row in group if row["score"] == 1)
                for group in mixed
            ),
            wrong_lengths=tuple(
                len(row["token_ids"]) for group in mixed for row in group if _is_wrong(row)
            ),
            failure=next((row["detail"] for row in rows if row["status"] in _FAILED), None),
        )

    def _groups(self, step: int) -> list[list[dict[str, Any]]]:
        try:
            rows = read_rollouts(self.path, step)
            groups: dict[str, list[dict[str, Any]]] = {}
            for row in rows:
                if not row.keys() >= _COLUMNS:
                    raise ValueError("a row lacks columns")
                groups.setdefault(row["prompt_id"], []).append(row)
        except GrpoError:
            raise
        # gzip has its own exceptions for a file that is cut or bent.
        except (OSError, EOFError, ValueError, AttributeError, zlib.error) as problem:
            file = self.path / "rollouts" / f"step-{step:06d}.jsonl.gz"
            raise damaged(file, f"{problem}") from problem
        return list(groups.values())


_FAILED = ("error", "timeout")
_COLUMNS = frozenset(
    {"prompt_id", "completion", "token_ids", "finish", "score", "status", "detail", "reference"}
)


def _is_wrong(row: dict[str, Any]) -> bool:
    return row["score"] is not None and row["score"] < 1


def _mean_tokens(rows: Iterator[dict[str, Any]]) -> float:
    return float(np.mean([len(row["token_ids"]) for row in rows]))


def _gold(row: dict[str, Any]) -> str | None:
    """The reference when it is an integer, which a right answer must spell out; else None."""
    text = str(row["reference"]).strip().replace(",", "")
    return str(int(text)) if _INTEGER.fullmatch(text) else None


def _holds_gold(row: dict[str, Any]) -> bool:
    gold = _gold(row)
    text = row["completion"].replace(",", "").replace("\N{MINUS SIGN}", "-")
    # Leading zeros, and a sign before any number, are no reason to call an answer another one.
    numbers = {match.lstrip("0") or "0" for match in re.findall(r"\d+", text)}
    return gold is not None and gold.lstrip("+-") in numbers
