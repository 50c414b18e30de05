"""What a comparison is made of. Dims: S seeds, Q questions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from grpo_cli.stats import Difference, Interval
from grpo_cli.types import StepRecord

JSON = str | int | float | bool | None | list["JSON"] | dict[str, "JSON"]

ALPHA = 0.05

MIN_SEEDS = 3
"""Below this many seeds in an arm nothing is tested."""

QuestionScores = Mapping[str, float]
"""Question id -> mean score of its samples; a question without a verdict is absent."""


@dataclass(frozen=True, slots=True)
class RunRecord:
    """One run, however it was read: a folder or an MLflow run.

    Example:
        RunRecord(place="runs/dapo/dapo/s0-1a2b3c4d", run_id="9f0c...", recipe_name="dapo",
                  name="dapo", seed=0, recipe_hash="51ab...", state="done", reason=None,
                  leaves={"objective.high": 0.28}, facts={"verifier": "ab12..."}, records=(...))
    """

    place: str
    run_id: str
    recipe_name: str
    name: str
    seed: int
    recipe_hash: str
    state: str
    """`done`, `running`, `stopped`, `failed` or `interrupted`."""
    reason: str | None
    leaves: Mapping[str, JSON]
    """The recipe by dotted key, without the keys that have no effect."""
    facts: Mapping[str, str]
    """What it ran against and on: hashes, device, library versions. A fact may be unknown."""
    records: tuple[StepRecord, ...]
    scores_at: Callable[[int], QuestionScores | None] = field(compare=False)
    """Held-out scores at a step, or None when they are not there."""
    arm: str | None = None
    """The arm that an ablation's plan gives it."""

    def series(self, metric: str) -> list[tuple[int, float]]:
        """(step, value) of every record that has a number for `metric`."""
        found = ((r.step, r.scalars.get(metric, float("nan"))) for r in self.records)
        return [(step, value) for step, value in found if value == value]


@dataclass(frozen=True, slots=True)
class Plan:
    """What `plan.json` says of an ablation, where it says it."""

    name: str
    control: str | None = None
    primary: str | None = None
    """Metric and place, such as `eval/accuracy@final`."""
    direction: str | None = None
    keys: tuple[str, ...] | None = None
    """Recipe keys that arms may differ in; None when the plan does not list them."""
    missing: tuple[tuple[str, int], ...] = ()
    """(arm, seed) of cells without a run folder."""
    arms: Mapping[Path, str] = field(default_factory=dict)
    """Run folder -> arm."""


@dataclass(frozen=True, slots=True)
class Arm:
    """Runs that differ only in their seed, in the order of the seeds."""

    name: str
    runs: tuple[RunRecord, ...]
    missing: tuple[int, ...] = ()
    """Seeds that were planned and have no run."""

    @property
    def leaves(self) -> Mapping[str, JSON]:
        """The recipe of its runs."""
        return self.runs[0].leaves


class Verdict(StrEnum):
    """The word for an arm against the control."""

    CONTROL = "control"
    BETTER = "better"
    WORSE = "worse"
    HIGHER = "higher"
    LOWER = "lower"
    NONE = "no difference detected"
    INTERVAL_ONLY = "two seeds: interval only"
    ANECDOTE = "anecdote"
    IDENTICAL = "identical"
    NO_SPREAD = "no spread between seeds"
    NO_SCORE = "no score"


@dataclass(frozen=True, slots=True)
class SeedScore:
    """The score of one run, NaN when it has none that counts, and why."""

    seed: int
    score: float
    step: int | None
    state: str
    place: str
    reason: str | None
    late_score: float
    """Last score of a run that did not finish, NaN otherwise."""


@dataclass(frozen=True, slots=True)
class Versus:
    """An arm against the control. `difference.p` is NaN where no test may be made."""

    difference: Difference
    p_holm: float
    p_permutation: float
    """Exact, and blind to the shape of the noise; at few seeds it cannot be small."""
    prob_above: Interval
    mde: float
    """Difference that this design finds with 80 % power, at the level that Holm needs at worst."""
    correlation: float
    """Between the paired seeds; NaN when the test is not paired."""
    num_seeds: tuple[int, int]
    bootstrap: Interval | None
    with_unfinished: Difference | None
    """The same with the last scores of runs that did not finish."""


@dataclass(frozen=True, slots=True)
class Curve:
    """A mean over seeds with its t band; `x` are steps or tokens."""

    x: tuple[float, ...]
    mean: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    seeds: tuple[tuple[tuple[float, float], ...], ...] = ()
    """The (x, value) points of every seed."""


@dataclass(frozen=True, slots=True)
class ArmResult:
    """Everything that is said about one arm."""

    name: str
    changes: Mapping[str, JSON]
    """The recipe keys in which it differs from the control."""
    seeds: tuple[SeedScore, ...]
    missing: tuple[int, ...]
    score: Interval
    sd: float
    verdict: Verdict
    versus: Versus | None
    health: Mapping[str, float]
    by_step: Curve
    by_tokens: Curve
    health_curves: Mapping[str, Curve]
    sentence: str = ""
    remarks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Comparison:
    """The whole result. What is printed in any form comes from here."""

    metric: str
    at: str
    direction: str
    """`higher` or `lower` when one of them is better, otherwise `none`."""
    control: str | None
    control_why: str
    alpha: float
    family: int
    """Comparisons that Holm's correction is over."""
    exploratory: bool
    arms: tuple[ArmResult, ...]
    notes: tuple[str, ...]
    differences: tuple[str, ...]
    """Differences outside the declared axis that were let through."""
    rng_seed: int
    num_resamples: int
