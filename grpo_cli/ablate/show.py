"""The plan as a person reads it, and as JSON. Must not import torch."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from grpo_cli.ablate.checks import arm_warnings
from grpo_cli.ablate.plan import Plan
from grpo_cli.compare.model import ALPHA, MIN_SEEDS
from grpo_cli.compare.words import amount
from grpo_cli.errors import Problem
from grpo_cli.recipe.explain import warnings as recipe_warnings
from grpo_cli.recipe.yaml_tree import JSON, show_value
from grpo_cli.report import JSON_VERSION, safe_text
from grpo_cli.stats import smallest_p

if TYPE_CHECKING:
    from rich.console import Console


def plan_warnings(plan: Plan) -> list[Problem]:
    """What is legal in a plan and known to mislead, the same thing once."""
    arms = [(arm.name, arm.recipe) for arm in plan.arms]
    found = arm_warnings(arms)
    by_text: dict[tuple[str, str, str | None], list[str]] = {}
    for name, recipe in arms:
        for problem in recipe_warnings(recipe):
            key = (problem.code, problem.message, problem.hint)
            by_text.setdefault(key, []).append(name)
    for (code, message, hint), names in by_text.items():
        where = "every arm" if len(names) == len(arms) else ", ".join(f"`{n}`" for n in names)
        found.append(Problem(code, f"{message} ({where})", hint=hint))
    if few := _too_few(plan):
        found.append(few)
    return found


def _too_few(plan: Plan) -> Problem | None:
    seeds = len(plan.seeds)
    hint = "add seeds: `--seeds 5` extends this ablation"
    if seeds == 1:
        return Problem(
            "GW423", "one seed per arm: this will be an anecdote, without a test", None, hint
        )
    if seeds < MIN_SEEDS:
        return Problem("GW423", "two seeds per arm: intervals, without a test", None, hint)
    return None


def _exact(plan: Plan, seeds: int) -> float:
    """The smallest p of the test that assumes no normal noise, for the design's kind of seeds."""
    return smallest_p(seeds) if plan.estimate.paired else smallest_p(seeds, seeds)


def show_plan(plan: Plan, console: Console, notes: list[tuple[str, str]]) -> None:
    """The arms with what sets each apart, then cost and power."""
    for label, value in _header(plan):
        console.print(Text(f"{label:<9} {safe_text(value)}"), soft_wrap=True)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for column in ("ARM", "DIFFERS FROM THE CONTROL"):
        table.add_column(column, overflow="fold")
    for arm in plan.arms:
        is_control = arm.name == plan.control
        what = "(control)" if is_control else _differences(arm.differs)
        table.add_row(Text(safe_text(arm.name)), Text(safe_text(what)))
    console.print()
    console.print(table)
    console.print()
    for label, value in [*_figures(plan), *notes]:
        console.print(Text(f"{label:<9} {safe_text(value)}"), soft_wrap=True)


def plan_json(plan: Plan, plan_hash: str) -> dict[str, object]:
    """The plan for `--dry-run --json`."""
    estimate = plan.estimate
    return {
        "schema_version": JSON_VERSION,
        "type": "plan",
        "name": plan.name,
        "hash": plan_hash,
        "design": plan.design,
        "control": plan.control,
        "control_why": plan.control_why,
        "primary": str(plan.primary),
        "seeds": list(plan.seeds),
        "arms": [
            {"name": arm.name, "recipe_hash": arm.recipe.hash, "differs": arm.differs}
            for arm in plan.arms
        ],
        "cells": [{"arm": c.arm, "seed": c.seed, "run": c.run} for c in plan.cells],
        "estimated_s": round(estimate.seconds, 1),
        "estimated_tokens": round(estimate.tokens),
        "estimated_from": estimate.cost_from,
        "seed_sd": _number(estimate.seed_sd),
        "seed_sd_from": estimate.seed_sd_from,
        "mde": _number(estimate.mde),
        "paired": estimate.paired,
        "smallest_exact_p": _exact(plan, len(plan.seeds)),
        "warnings": [
            {"code": p.code, "message": p.message, "hint": p.hint} for p in plan_warnings(plan)
        ],
    }


def _header(plan: Plan) -> Iterator[tuple[str, str]]:
    yield "ablation", f"{plan.name}   recipe {plan.recipe}   setup {plan.setup}"
    for axis in plan.axes:
        yield "axis", f"{axis.name}: {axis.summary}"
    seeds = ", ".join(str(seed) for seed in plan.seeds)
    yield "design", f"{plan.design}   control {plan.control} ({plan.control_why})   seeds {seeds}"
    yield "primary", f"{plan.primary}, decided before the run"


def _figures(plan: Plan) -> Iterator[tuple[str, str]]:
    estimate = plan.estimate
    steps = sorted({arm.recipe.optim.steps for arm in plan.arms})
    budget = f"   budget {plan.budget}" if plan.budget else ""
    yield (
        "cells",
        f"{len(plan.cells)} = {len(plan.arms)} arms x {len(plan.seeds)} seeds, "
        f"{' or '.join(map(str, steps))} steps each{budget}",
    )
    yield (
        "cost",
        f"about {_duration(estimate.seconds)} one after the other, {estimate.tokens:,.0f} tokens "
        f"(from {estimate.cost_from})",
    )
    metric = plan.primary.metric
    if len(plan.seeds) < MIN_SEEDS:
        yield "power", f"none: below {MIN_SEEDS} seeds per arm nothing is tested"
    elif math.isnan(estimate.mde):
        yield "power", f"unknown: how seeds spread in {metric} ({estimate.seed_sd_from})"
    else:
        many = f", Holm over {estimate.family}" if estimate.family > 1 else ""
        of_pairs = f", of a pair's difference {amount(metric, estimate.pair_sd)}"
        yield (
            "power",
            f"detects a true difference of {amount(metric, estimate.mde)} with chance 0.8 "
            f"({'paired' if estimate.paired else 'Welch'} t{many}; seed SD "
            f"{amount(metric, estimate.seed_sd)}{of_pairs if estimate.paired else ''}: "
            f"{estimate.seed_sd_from})",
        )
        seeds = enough = len(plan.seeds)
        while _exact(plan, enough) > ALPHA:
            enough += 1
        if enough > seeds:
            pairs = f"sign flips of {seeds} pairs" if estimate.paired else "permutations"
            yield (
                "exact",
                f"without assuming normal noise p cannot go below {_exact(plan, seeds):.2g} "
                f"({pairs}; it can from {enough} seeds on): the verdict rests on the t test",
            )


def _differences(differs: Mapping[str, JSON]) -> str:
    """The differing leaves; of a node whose kind changed, only those it has now."""
    return "  ".join(
        f"{key}={'-' if value is None else show_value(value)}"
        for key, value in differs.items()
        if value is not None or f"{key.rpartition('.')[0]}.kind" not in differs
    )


def _number(value: float) -> float | None:
    return None if math.isnan(value) else value


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
