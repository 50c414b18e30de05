"""From `grpo ablate` and its options to a plan: arms, cells, and what the design can see.

A cell is one arm with one seed, and one run folder. Must not import torch.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from grpo_cli.ablate.asked import Primary, affordable, parse_budget, parse_primary
from grpo_cli.ablate.checks import refuse_equal_arms
from grpo_cli.ablate.history import Estimate, estimate, read_history
from grpo_cli.errors import GrpoError, Problem, error
from grpo_cli.recipe.axes import Axis, AxisArm, load_arm, load_axis
from grpo_cli.recipe.load import Loaded, leaves, load
from grpo_cli.recipe.problems import did_you_mean
from grpo_cli.recipe.schema import ALGORITHM_KEYS, Recipe, has_effect
from grpo_cli.recipe.yaml_tree import JSON, Tree
from grpo_cli.rundir import run_path

Design = Literal["grid", "one-at-a-time"]
BASE = "base"
"""The arm without any axis."""
EXTRA_ARMS = ("random_reward", "no_op")
ABLATIONS = "ablations"
"""Folder of the runs folder that holds one folder per ablation."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True, slots=True)
class Request:
    """What a person asked for.

    Example:
        Request(recipe="dapo", axes=("std_norm",), seeds=3)
    """

    recipe: str
    axes: tuple[str, ...] = ()
    seeds: int = 5
    setup: str | None = None
    sets: tuple[str, ...] = ()
    design: Design = "grid"
    control: str | None = None
    primary: str = "eval/accuracy@final"
    extra_arms: tuple[str, ...] = ()
    budget: str | None = None
    name: str | None = None
    plugins: Mapping[str, str] = field(default_factory=dict)
    """File -> SHA-256 of the plug-ins that recipes may use."""


@dataclass(frozen=True, slots=True)
class PlanAxis:
    """A factor: its name, what it is, its settings and the recipe keys that may differ for it."""

    name: str
    summary: str
    arms: tuple[str, ...]
    keys: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PlanArm:
    """One recipe of the comparison. `differs` holds only the leaves unlike the control's."""

    name: str
    recipe: Recipe
    differs: dict[str, JSON]
    origins: dict[str, str]
    sources: dict[str, str]
    identity: dict[str, str] = field(default_factory=dict)
    """Hashes of what a run of it depends on besides the recipe."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One arm with one seed. `run` is its folder, relative to the ablation's.

    Example:
        Cell(arm="std_norm-none", seed=2, run="std_norm-none/s2-1a2b3c4d")
    """

    arm: str
    seed: int
    run: str


@dataclass(frozen=True, slots=True)
class Outline:
    """As much of a plan as looking on needs: no recipes, so no plug-ins."""

    control: str
    steps: Mapping[str, int]
    """Arm -> its number of steps, in the plan's order."""
    cells: tuple[Cell, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """An experiment, decided before it runs."""

    name: str
    recipe: str
    """The base recipe's name or path, as typed."""
    setup: str
    axes: tuple[PlanAxis, ...]
    design: Design
    control: str
    seeds: tuple[int, ...]
    primary: Primary
    budget: str | None
    arms: tuple[PlanArm, ...]
    estimate: Estimate
    control_why: str = ""
    """Why the control is that arm, in a few words."""
    plugins: Mapping[str, str] = field(default_factory=dict)
    seeds_added: tuple[tuple[int, ...], ...] = ()
    """The seeds by the command that asked for them: looking before adding seeds is no accident."""

    @property
    def cells(self) -> tuple[Cell, ...]:
        """Every arm with every seed; all arms of a seed stand together."""
        return tuple(
            Cell(arm.name, seed, cell_path(arm, seed)) for seed in self.seeds for arm in self.arms
        )

    @property
    def outline(self) -> Outline:
        """What looking on needs."""
        steps = {arm.name: arm.recipe.optim.steps for arm in self.arms}
        return Outline(self.control, steps, self.cells)

    def arm(self, name: str) -> PlanArm:
        """The arm of this name."""
        return next(arm for arm in self.arms if arm.name == name)


def cell_path(arm: PlanArm, seed: int) -> str:
    """The run folder of a cell, relative to the ablation's folder."""
    return run_path(Path(), "x", arm.name, seed, arm.recipe).relative_to("x").as_posix()


def make_plan(
    request: Request, root: Path, steps_of: Callable[[str], int | None] = lambda name: None
) -> Plan:
    """The plan of a request.

    Args:
        root: the runs folder, whose runs say how long a step takes and how seeds spread.
        steps_of: what the same budget came to when an ablation of this name was planned first.

    Raises:
        GrpoError: GR221 and GR222 for arms that are or come to the same, GR107, GR111 and GR209
            for what was asked for and does not exist, and whatever is wrong in a recipe.
    """
    axes = [load_axis(typed, number) for number, typed in enumerate(request.axes, start=1)]
    _check_request(request, axes)
    sets = list(request.sets)
    base = load(request.recipe, setup=request.setup, sets=sets)
    history = read_history(root, base.recipe)
    name = request.name or _default_name(base.name, axes, request)
    kind, amount = parse_budget(request.budget)
    steps = None if kind is None else amount if kind == "steps" else steps_of(name)
    arms = _arms(request, axes, _with_steps(sets, steps))
    if kind in ("tokens", "minutes") and steps is None:
        others = len(request.extra_arms) + (request.design == "one-at-a-time")
        recipes = [*(arm.recipe for arm in arms), *([base.recipe] * others)]
        steps = affordable(kind, amount, history, recipes, request.seeds)
        arms = _arms(request, axes, _with_steps(sets, steps))
    base = load(request.recipe, setup=request.setup, sets=_with_steps(sets, steps))
    arms, control, why = _with_control(arms, base, request, axes)
    arms += [_extra(name, control) for name in request.extra_arms]
    refuse_equal_arms([(arm.name, arm.recipe) for arm in arms])
    arms = [replace(arm, differs=_differs(control.recipe, arm.recipe)) for arm in arms]
    seeds = tuple(range(request.seeds))
    primary = parse_primary(request.primary, [(arm.name, arm.recipe) for arm in arms])
    recipes = [arm.recipe for arm in arms]
    return Plan(
        name=name,
        recipe=request.recipe,
        setup=control.recipe.setup,
        axes=tuple(_plan_axis(axis) for axis in axes),
        design=request.design,
        control=control.name,
        seeds=seeds,
        primary=primary,
        budget=request.budget,
        arms=tuple(arms),
        estimate=estimate(history, recipes, len(seeds), primary.metric),
        control_why=why,
        plugins=request.plugins,
        seeds_added=(seeds,),
    )


def with_seeds(plan: Plan, seeds: Sequence[int]) -> Plan:
    """The same plan with more seeds, which are noted as added later."""
    new = tuple(seed for seed in seeds if seed not in plan.seeds)
    if not new:
        return plan
    seeds = (*plan.seeds, *new)
    return replace(
        plan,
        seeds=seeds,
        seeds_added=(*plan.seeds_added, new),
        estimate=plan.estimate.for_seeds(len(plan.seeds), len(seeds)),
    )


def _check_request(request: Request, axes: Sequence[Axis]) -> None:
    problems = []
    for name in request.extra_arms:
        if name not in EXTRA_ARMS:
            hint = did_you_mean(name, EXTRA_ARMS) or f"there are {', '.join(EXTRA_ARMS)}"
            problems.append(Problem("GR209", f"no built-in arm `{name}`", None, hint))
    if not axes and not request.extra_arms:
        hint = "add `--axis NAME` or `--axis key=A,B`; `--arms no_op` compares with sanity arms"
        problems.append(Problem("GR209", "nothing to compare: no axis and no arms", None, hint))
    names = [axis.name for axis in axes]
    problems += [
        Problem("GR209", f"the axis `{name}` twice", None, "give it once")
        for name in dict.fromkeys(n for n in names if names.count(n) > 1)
    ]
    if request.design == "grid" and not problems:
        problems += _overlaps(axes)
    if request.name is not None and (not _NAME.fullmatch(request.name) or ".." in request.name):
        hint = "use up to 64 letters, digits, '.', '_' and '-', the first a letter or digit"
        problems.append(Problem("GR209", f"{request.name!r} cannot name an ablation", None, hint))
    if problems:
        raise GrpoError(*problems)


def _overlaps(axes: Sequence[Axis]) -> Iterator[Problem]:
    """Two axes of a grid that set the same key: the second would always win."""
    keys = [(axis.name, {k for arm in axis.arms for k in _keys(arm.layer)}) for axis in axes]
    for (one, ours), (other, theirs) in itertools.combinations(keys, 2):
        both = sorted(k for k in ours if any(_within(k, t) or _within(t, k) for t in theirs if t))
        if both and both != [""]:
            yield Problem(
                "GR209",
                f"the axes `{one}` and `{other}` both set `{both[0]}`",
                None,
                "give one of them, or use `--design one-at-a-time`",
            )


def _within(key: str, node: str) -> bool:
    return key == node or key.startswith(f"{node}.")


def _with_steps(sets: Sequence[str], steps: int | None) -> list[str]:
    return [*sets, *([] if steps is None else [f"optim.steps={steps}"])]


def _arms(request: Request, axes: Sequence[Axis], sets: Sequence[str]) -> list[PlanArm]:
    """The arms of the design, without the base recipe and the extra arms."""
    if request.design == "grid":
        chosen = [tuple(c) for c in itertools.product(*([(x, a) for a in x.arms] for x in axes))]
    else:
        chosen = [((axis, arm),) for axis in axes for arm in axis.arms]
    if not axes:
        chosen = [()]
    found, problems = [], []
    for combination in chosen:
        try:
            loaded = load_arm(request.recipe, request.setup, sets, combination)
        except GrpoError as bad:
            problems += [p for p in bad.problems if p not in problems]
        else:
            found.append(_plan_arm(_arm_name(combination), loaded))
    if problems:
        raise GrpoError(*problems)
    return found


def _plan_arm(name: str, loaded: Loaded) -> PlanArm:
    return PlanArm(name, loaded.recipe, {}, loaded.origins, loaded.sources)


def _arm_name(chosen: Sequence[tuple[Axis, AxisArm]]) -> str:
    name = ".".join(f"{axis.name}-{arm.name}" for axis, arm in chosen) or BASE
    return name if len(name) <= 64 else f"{name[:61]}..."


def _with_control(
    arms: list[PlanArm], base: Loaded, request: Request, axes: Sequence[Axis]
) -> tuple[list[PlanArm], PlanArm, str]:
    """The arms with the base recipe among them where the design wants it, the control, and why."""
    plain = _plan_arm(BASE, base)
    if request.design == "one-at-a-time":
        # An arm that is the base recipe is the base: each axis then adds its other settings.
        arms = [plain, *(arm for arm in arms if arm.recipe.hash != plain.recipe.hash)]
    if request.control is None:
        for arm in arms:
            if arm.recipe.hash == plain.recipe.hash:
                return arms, arm, "the recipe itself"
        return arms, arms[0], "the first arm, as none is the recipe itself; --control names another"
    matches = [
        arm
        for arm in arms
        if request.control in (arm.name, *arm.name.split("."), *_short(arm.name, axes))
    ]
    if len(matches) != 1:
        names = [arm.name for arm in arms]
        short = [name for arm in arms for name in _short(arm.name, axes)]
        many = "names several arms" if matches else "is no arm of this ablation"
        hint = did_you_mean(request.control, [*names, *short]) or f"arms: {', '.join(names)}"
        raise error("GR209", f"--control `{request.control}` {many}", hint=hint)
    return arms, matches[0], "--control"


def _short(name: str, axes: Sequence[Axis]) -> list[str]:
    """An arm's name without the axis, when there is one axis."""
    return [name.removeprefix(f"{axis.name}-") for axis in axes] if len(axes) == 1 else []


def _extra(name: str, control: PlanArm) -> PlanArm:
    tree = {**control.recipe.tree(), "control": {"kind": name}}
    recipe = Recipe.model_validate_json(_json(tree))
    origins = {key: control.origins.get(key, "default") for key in leaves(recipe)}
    changed = {key: "--arms" for key in origins if key.startswith("control")}
    return PlanArm(name, recipe, {}, origins | changed, control.sources)


def _json(tree: Mapping[str, object]) -> str:
    import json

    return json.dumps(tree)


def _differs(control: Recipe, arm: Recipe) -> dict[str, JSON]:
    """The leaves of `arm` that the control has not or has otherwise; null for what it lacks."""
    left, right = leaves(control), leaves(arm)
    return {
        key: right.get(key)
        for key in {**left, **right}
        if has_effect(key) and (key not in left or key not in right or left[key] != right[key])
    }


def _plan_axis(axis: Axis) -> PlanAxis:
    keys: set[str] = set()
    for arm in axis.arms:
        keys |= ALGORITHM_KEYS if arm.recipe is not None else set(_keys(arm.layer))
    return PlanAxis(
        axis.name, axis.summary, tuple(arm.name for arm in axis.arms), tuple(sorted(keys))
    )


def _keys(layer: Tree, prefix: str = "") -> list[str]:
    """Dotted keys that a layer sets; a node with a `kind` counts as a whole."""
    if not isinstance(layer.value, dict) or "kind" in layer.value:
        return [prefix]
    return [
        found
        for key, node in layer.value.items()
        for found in _keys(node, f"{prefix}.{key}" if prefix else key)
    ]


def _default_name(recipe: str, axes: Sequence[Axis], request: Request) -> str:
    parts = [recipe, *(axis.name for axis in axes), *(request.extra_arms if not axes else ())]
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", "-".join(parts))[:64]
    return name.strip("-._") or "ablation"
