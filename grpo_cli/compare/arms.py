"""Runs -> arms, and the refusal of what is no fair comparison."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from grpo_cli.compare.model import JSON, Arm, Plan, RunRecord
from grpo_cli.errors import error
from grpo_cli.recipe.problems import did_you_mean
from grpo_cli.recipe.schema import ALGORITHM_KEYS

MEASURE = ("eval", "verifier", "task")
"""Recipe nodes that decide what is measured: arms that differ there answer other questions."""

NOTED = ("commit",)
"""Facts whose difference is said but not refused: a commit may have changed only a comment."""

_SHARED = ("model", "lora", "task", "sampling.prompts_per_step")
"""Recipe nodes that must be the same for equal seeds to mean equal adapters and prompts."""

ABSENT = "(not there)"
"""For a leaf that a recipe lacks, which others have."""


def make_arms(runs: Sequence[RunRecord], plans: Sequence[Plan], group_by: str) -> list[Arm]:
    """The arms in the order of the plan, otherwise in the order in which they first appear.

    `group_by`: `arm` (the plan's arms; without a plan, runs of one recipe), `name` (`--name`),
    `recipe` (the recipe's file name) or a dotted recipe key.

    Raises:
        GrpoError: GR232 when an arm has a seed twice or no run has the key.
    """
    labels = _labels(runs, group_by)
    groups: dict[str, list[RunRecord]] = {}
    for run, label in zip(runs, labels, strict=True):
        groups.setdefault(label, []).append(run)
    missing: dict[str, list[int]] = {}
    for plan in plans if group_by == "arm" else ():
        for arm, seed in plan.missing:
            missing.setdefault(arm, []).append(seed)
    planned = list(dict.fromkeys(arm for plan in plans for arm in plan.arms.values()))
    arms = []
    for label in sorted(groups, key=lambda x: planned.index(x) if x in planned else len(planned)):
        members = groups[label]
        by_seed: dict[int, RunRecord] = {}
        for run in members:
            if run.seed in by_seed:
                raise error(
                    "GR232",
                    f"arm {label!r} has two runs of seed {run.seed}: {by_seed[run.seed].place} and "
                    f"{run.place}",
                    hint="a repeated seed is no second observation; name the runs that count, or "
                    "use --group-by name",
                )
            by_seed[run.seed] = run
        ordered = tuple(by_seed[seed] for seed in sorted(by_seed))
        arms.append(Arm(label, ordered, tuple(sorted(missing.get(label, ())))))
    return arms


def choose_control(
    arms: Sequence[Arm], plans: Sequence[Plan], wanted: str | None
) -> tuple[str | None, str]:
    """The name of the control arm and why it is that one; None when there is only one arm.

    Raises:
        GrpoError: GR232 when no arm, or more than one, has the wanted name.
    """
    names = [arm.name for arm in arms]
    if wanted is not None:
        matches = [wanted] if wanted in names else [name for name in names if wanted in name]
        if len(matches) == 1:
            return matches[0], "--baseline"
        raise error(
            "GR232",
            f"{wanted!r} names {'more than one arm' if matches else 'no arm'}",
            hint=did_you_mean(wanted, names) or f"arms: {', '.join(names)}",
        )
    if len(arms) < 2:
        return None, "the only arm"
    planned = {plan.control for plan in plans if plan.control in names}
    if len(planned) == 1:
        return planned.pop(), "the plan's control"
    for name in names:
        if name == "grpo":
            return name, "the plain algorithm; --baseline names another"
    return names[0], "the first arm; --baseline names another"


def recipe_changes(a: Mapping[str, JSON], b: Mapping[str, JSON]) -> dict[str, JSON]:
    """The leaves of `b` that are not the same in `a`; one that `b` lacks has a note for a value."""
    return {
        key: b.get(key, ABSENT)
        for key in dict.fromkeys([*a, *b])
        if (key in a) != (key in b) or a.get(key) != b.get(key)
    }


def seeds_pair(changes: Iterable[str]) -> bool:
    """Whether recipes that differ in these keys start alike and see the same prompts per seed."""
    return not any(key == node or key.startswith(f"{node}.") for key in changes for node in _SHARED)


def unfair(arms: Sequence[Arm], control: Arm, plans: Sequence[Plan]) -> list[str]:
    """The differences outside the declared axis, one line each; empty when there are none.

    The axis is the plan's. Without a plan, arms may differ in the algorithm (everything that an
    algorithm file may say), or else in one single value; never in what is measured. Runs of one
    arm may differ in their seed only, and all must have run on the same device with the same
    libraries, verifier and model.
    """
    found = []
    for arm in arms:
        for run in arm.runs[1:]:
            changed = recipe_changes(arm.leaves, run.leaves)
            found += [f"{arm.name}: its runs differ in {key}" for key in changed]
    for arm in arms:
        changes = recipe_changes(control.leaves, arm.leaves)
        found += [
            f"{arm.name} against {control.name}: {key} is {shown(changes[key])}, "
            f"not {shown(control.leaves.get(key, ABSENT))}"
            for key in _undeclared(list(changes), arm, plans)
        ]
    found += [line for key, line in _fact_differences(arms) if key not in NOTED]
    return list(dict.fromkeys(found))


def noted_differences(arms: Sequence[Arm]) -> list[str]:
    """Differences that are said and not refused."""
    return [line for key, line in _fact_differences(arms) if key in NOTED]


def refuse(differences: Sequence[str]) -> None:
    """Raise GR231 for arms that differ in more than was declared."""
    if not differences:
        return
    shown_lines = "; ".join(differences[:6])
    more = f"; and {len(differences) - 6} more" if len(differences) > 6 else ""
    raise error(
        "GR231",
        f"the arms differ outside the declared axis: {shown_lines}{more}",
        hint="compare runs that differ in one thing, or pass --allow-diff to have the differences "
        "listed beside the result",
    )


def shown(value: JSON) -> str:
    """A recipe value as a person writes it."""
    return value if isinstance(value, str) else json.dumps(value)


def _undeclared(keys: Sequence[str], arm: Arm, plans: Sequence[Plan]) -> list[str]:
    """Those of the changed keys that are outside the axis."""
    if arm.runs[0].arm is not None and plans:
        declared = [plan.keys for plan in plans]
        if any(keys_of is None for keys_of in declared):
            return []  # the plan made these recipes, and does not list keys
        # `control` makes the built-in sanity arms, which belong to no axis.
        allowed = ("control", *(key for keys_of in declared for key in keys_of or ()))
        return [k for k in keys if not any(k == a or k.startswith(f"{a}.") for a in allowed)]
    # How often a run is evaluated changes neither the run nor its last score.
    keys = [key for key in keys if key != "eval.every"]
    setup = [key for key in keys if key.split(".")[0] not in ALGORITHM_KEYS]
    one_thing = len(keys) == 1 or _is_one_kind(keys)
    if one_thing and not any(key.split(".")[0] in MEASURE for key in setup):
        return []
    return setup


def _is_one_kind(keys: Sequence[str]) -> bool:
    """Whether all keys lie below one node whose kind is among them: one thing was replaced."""
    nodes = {key.rpartition(".")[0] for key in keys if key.endswith(".kind")}
    return len(nodes) == 1 and all(key.startswith(f"{node}.") for node in nodes for key in keys)


def _fact_differences(arms: Sequence[Arm]) -> Iterator[tuple[str, str]]:
    runs = [(arm.name, run) for arm in arms for run in arm.runs]
    for key in sorted({key for _, run in runs for key in run.facts}):
        by_value: dict[str, list[str]] = {}
        for name, run in runs:
            # A store without the run folder does not know everything.
            if key in run.facts:
                by_value.setdefault(run.facts[key], []).append(name)
        if len(by_value) > 1:
            sides = (
                f"{_short(value)} ({', '.join(dict.fromkeys(names))})"
                for value, names in by_value.items()
            )
            yield key, f"{key}: {' against '.join(sides)}"


def _short(value: str) -> str:
    is_hash = len(value) >= 40 and all(c in "0123456789abcdef" for c in value)
    return value[:12] if is_hash else value


def _labels(runs: Sequence[RunRecord], group_by: str) -> list[str]:
    if group_by == "name":
        return [run.name for run in runs]
    if group_by == "recipe":
        return [run.recipe_name for run in runs]
    if group_by != "arm":
        if not any(group_by in run.leaves for run in runs):
            keys = sorted({key for run in runs for key in run.leaves})
            raise error(
                "GR232",
                f"--group-by {group_by}: no run's recipe has this key",
                hint=did_you_mean(group_by, [*keys, "arm", "name", "recipe"])
                or "use arm, name, recipe or a dotted recipe key",
            )
        return [f"{group_by}={shown(run.leaves.get(group_by, ABSENT))}" for run in runs]
    kinds = {run.recipe_hash: run for run in runs if run.arm is None}
    named: dict[str, str] = {}
    for digest, run in kinds.items():
        same_name = [other for other in kinds.values() if other.recipe_name == run.recipe_name]
        keys = list(
            dict.fromkeys(
                key for other in same_name for key in recipe_changes(run.leaves, other.leaves)
            )
        )
        changes = [f"{key}={shown(run.leaves[key])}" for key in sorted(keys) if key in run.leaves]
        named[digest] = " ".join([run.recipe_name, *changes])
    return [run.arm if run.arm is not None else named[run.recipe_hash] for run in runs]


def with_arm_names(arms: Sequence[Arm]) -> list[Arm]:
    """Arms whose long names (many changed keys) are cut, each still unique."""
    cut = [arm.name if len(arm.name) <= 60 else f"{arm.name[:57]}..." for arm in arms]
    return [
        replace(arm, name=name if cut.count(name) == 1 else f"{name} #{number}")
        for number, (arm, name) in enumerate(zip(arms, cut, strict=True), start=1)
    ]
