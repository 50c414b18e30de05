"""What earlier runs of the same setup say: time and tokens per step, and how seeds spread.

Dims: S seeds. Must not import torch.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from grpo_cli.compare.arms import recipe_changes, seeds_pair
from grpo_cli.compare.model import MIN_SEEDS
from grpo_cli.errors import GrpoError
from grpo_cli.recipe.load import leaves
from grpo_cli.recipe.schema import Recipe
from grpo_cli.rundir import find_runs, read_info, read_metrics
from grpo_cli.stats import mde
from grpo_cli.types import RunStatus

DEFAULT_SEED_SD = 0.02
"""Of held-out accuracy, when no earlier run says better."""
_TOKENS_PER_S = 3000.0
_LENGTH_SHARE = 0.6
_Finals = dict[str, dict[int, Mapping[str, float]]]
"""Recipe hash -> seed -> the last record of a run that is done."""

_SAME = ("model", "device", "lora", "task", "sampling", "eval", "engine")
"""Parts of a recipe that decide what a step costs and how large the seed noise is."""


@dataclass(frozen=True, slots=True)
class History:
    """Means over the earlier runs of a setup; None where there is none.

    Example:
        History(num_runs=6, step_s=1.4, step_tokens=6100, eval_s=6.3,
                seed_sd={"eval/accuracy": (0.012, 4)})
    """

    num_runs: int = 0
    step_s: float | None = None
    step_tokens: float | None = None
    eval_s: float | None = None
    seed_sd: Mapping[str, tuple[float, int]] = field(default_factory=dict)
    """Metric -> SD over seeds, pooled over recipes, and its degrees of freedom."""
    pair_sd: Mapping[str, tuple[float, int]] = field(default_factory=dict)
    """Metric -> SD of the differences between two recipes within a seed, pooled, and the same."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """What the whole ablation will cost, one cell after the other, and what it can see.

    Example:
        Estimate(seconds=540, eval_seconds=90, tokens=2.1e6, eval_tokens=4e5, cost_from="6 runs",
                 seed_sd=0.012, seed_sd_from="6 runs", mde=0.057, family=2, paired=True,
                 pair_sd=0.017)
    """

    seconds: float
    eval_seconds: float
    tokens: float
    eval_tokens: float
    cost_from: str
    seed_sd: float
    seed_sd_from: str
    mde: float
    """Smallest true difference to the control that is found with chance 0.8 at level 0.05 under
    Holm, worst case. NaN where nothing is tested or the seed SD is unknown."""
    family: int
    """Comparisons with the control."""
    paired: bool = False
    """Whether the arms will be compared seed by seed (`paired_arms`)."""
    pair_sd: float = math.nan
    """SD of the differences within a seed that a paired test is planned with."""

    def for_seeds(self, old: int, new: int) -> Estimate:
        """The same for another number of seeds per arm."""
        share = new / old
        sd = self.pair_sd if self.paired else self.seed_sd
        return replace(
            self,
            seconds=share * self.seconds,
            eval_seconds=share * self.eval_seconds,
            tokens=share * self.tokens,
            eval_tokens=share * self.eval_tokens,
            mde=_able(sd, new, self.paired, self.family),
        )


def read_history(root: Path, recipe: Recipe) -> History:
    """What the runs below `root` say about this recipe's setup."""
    wanted = _part(recipe.tree())
    times, tokens, evals = [], [], []
    finals: _Finals = {}
    for run in find_runs(root):
        try:
            if _part(json.loads((run / "recipe.json").read_bytes())) != wanted:
                continue
            info, records = read_info(run), read_metrics(run)
        except (OSError, ValueError, KeyError, TypeError, GrpoError):
            continue  # a damaged run says nothing here; `grpo runs ls` names it
        if len(records) < 3:
            continue
        scalars = [r.scalars for r in records[1:]]
        steps = [s["time/step_s"] for s in scalars if "time/step_s" in s]
        if not steps:
            continue
        times.append(_median(steps))
        evals += [s["time/eval_s"] for s in scalars if "time/eval_s" in s]
        tokens.append(scalars[-1].get("progress/tokens_generated", 0.0) / records[-1].step)
        if info.status is RunStatus.DONE:
            finals.setdefault(info.recipe_hash, {})[info.seed] = scalars[-1]
    if not times:
        return History()
    return History(
        num_runs=len(times),
        step_s=sum(times) / len(times),
        step_tokens=sum(tokens) / len(tokens),
        eval_s=sum(evals) / len(evals) if evals else None,
        seed_sd=_pooled(finals),
        pair_sd=_pooled(_differences(finals)),
    )


def estimate(history: History, recipes: Sequence[Recipe], num_seeds: int, metric: str) -> Estimate:
    """Cost and power of `num_seeds` runs of each recipe, all with the same seeds."""
    seconds = eval_seconds = tokens = eval_tokens = 0.0
    for recipe in recipes:
        sampling, evaluation = recipe.sampling, recipe.eval
        samples = sampling.prompts_per_step * sampling.group_size
        length = sampling.max_tokens * _LENGTH_SHARE
        step_tokens = history.step_tokens or samples * length
        step_s = history.step_s or step_tokens / _TOKENS_PER_S
        every = evaluation.every
        num_evals = 1 + (math.ceil(recipe.optim.steps / every) if every else 1)
        one = evaluation.num_questions * evaluation.samples_per_question * length
        eval_tokens += num_evals * one
        eval_seconds += num_evals * (history.eval_s or one / (4 * _TOKENS_PER_S))
        seconds += recipe.optim.steps * step_s
        tokens += recipe.optim.steps * step_tokens
    runs = f"{history.num_runs} earlier run{'' if history.num_runs == 1 else 's'} of this setup"
    default = "a default; no earlier run of this setup"
    none = "no two seeds of this setup yet"
    sd, sd_from = math.nan, none
    if metric in history.seed_sd:
        sd, degrees = history.seed_sd[metric]
        sd_from = f"{runs} ({degrees} degrees of freedom)"
    elif metric == "eval/accuracy":
        sd, sd_from = DEFAULT_SEED_SD, f"assumed, {none}"
    paired = paired_arms(recipes)
    # Without pairs to learn from: as if a seed made nothing alike in two arms.
    pair_sd = history.pair_sd.get(metric, (math.sqrt(2) * sd, 0))[0]
    family = max(len(recipes) - 1, 1)
    return Estimate(
        seconds=num_seeds * (seconds + eval_seconds),
        eval_seconds=num_seeds * eval_seconds,
        tokens=num_seeds * (tokens + eval_tokens),
        eval_tokens=num_seeds * eval_tokens,
        cost_from=runs if history.step_s else default,
        seed_sd=sd,
        seed_sd_from=sd_from,
        mde=_able(pair_sd if paired else sd, num_seeds, paired, family),
        family=family,
        paired=paired,
        pair_sd=pair_sd,
    )


def paired_arms(recipes: Sequence[Recipe]) -> bool:
    """Whether `grpo compare` will pair the seeds of these recipes."""
    first, *others = [leaves(recipe) for recipe in recipes]
    return all(seeds_pair(recipe_changes(first, other)) for other in others)


def _able(sd: float, num_seeds: int, paired: bool, family: int) -> float:
    if num_seeds < MIN_SEEDS:
        return math.nan
    return mde(sd, num_seeds, paired=paired, family=family)


def _part(tree: dict[str, Any]) -> dict[str, Any]:
    return {key: tree[key] for key in _SAME}


def _differences(finals: _Finals) -> _Finals:
    """What every recipe has more than the one with the most seeds, on the seeds of both."""
    ordered = sorted(finals, key=lambda digest: (-len(finals[digest]), digest))
    reference = finals[ordered[0]] if ordered else {}
    return {
        digest: {
            seed: {key: value - reference[seed].get(key, math.nan) for key, value in last.items()}
            for seed, last in finals[digest].items()
            if seed in reference
        }
        for digest in ordered[1:]
    }


def _pooled(finals: _Finals) -> dict[str, tuple[float, int]]:
    """SD over seeds within each recipe, pooled, and its degrees of freedom."""
    squares: dict[str, float] = {}
    degrees: dict[str, int] = {}
    for by_seed in finals.values():
        records = list(by_seed.values())
        for metric in records[0] if records else ():
            values = [r[metric] for r in records if not math.isnan(r.get(metric, math.nan))]
            if len(values) < 2 or metric.startswith("time/"):
                continue
            mean = sum(values) / len(values)
            squares[metric] = squares.get(metric, 0.0) + sum((v - mean) ** 2 for v in values)
            degrees[metric] = degrees.get(metric, 0) + len(values) - 1
    return {m: (math.sqrt(squares[m] / degrees[m]), degrees[m]) for m in squares if squares[m] > 0}


def _median(values: Sequence[float]) -> float:
    ordered = sorted(values)
    return ordered[len(ordered) // 2]
