"""`plan.json`: written before the first cell runs, so that the question is older than the answer.

    runs/ablations/NAME/plan.json                    the plan and its hash
    runs/ablations/NAME/ARM/s0-1a2b3c4d/             one run folder per cell
    runs/ablations/NAME/logs/                        what the workers and the mirror said
    runs/ablations/NAME/report/                      the comparison

The hash covers what decides the result: arms, control, axes, design, primary metric, budget. Not
the seeds: adding some extends the plan. Must not import torch.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from grpo_cli.ablate.asked import Primary
from grpo_cli.ablate.history import Estimate
from grpo_cli.ablate.plan import (
    ABLATIONS,
    Cell,
    Outline,
    Plan,
    PlanArm,
    PlanAxis,
    with_seeds,
)
from grpo_cli.checkpoint import replace_file
from grpo_cli.errors import error
from grpo_cli.recipe.schema import WITHOUT_EFFECT, Recipe

PLAN_FILE = "plan.json"
VERSION = 1


def ablation_dir(root: Path, name: str) -> Path:
    """The folder of the ablation `name` in the runs folder `root`."""
    return root / ABLATIONS / name


def find_ablations(root: Path) -> list[Path]:
    """The folders of all ablations, sorted."""
    return sorted(path.parent for path in (root / ABLATIONS).glob(f"*/{PLAN_FILE}"))


def plan_hash(plan: Plan) -> str:
    """SHA-256 of what decides the result (hex)."""
    return hashlib.sha256(json.dumps(_decided(plan), sort_keys=True).encode()).hexdigest()


def write_plan(folder: Path, plan: Plan) -> None:
    """Write `plan.json` whole.

    Raises:
        GrpoError: GR303 when it cannot be written.
    """
    document: dict[str, Any] = {
        "version": VERSION,
        "name": plan.name,
        "hash": plan_hash(plan),
        **{k: v for k, v in _decided(plan).items() if k != "arms"},
        "recipe": plan.recipe,
        "setup": plan.setup,
        "control_why": plan.control_why,
        "seeds": list(plan.seeds),
        "seeds_added": [list(seeds) for seeds in plan.seeds_added],
        "arms": [
            {
                "name": arm.name,
                "recipe_hash": arm.recipe.hash,
                "differs": arm.differs,
                "identity": arm.identity,
                "recipe": arm.recipe.tree(),
                "origins": arm.origins,
                "sources": arm.sources,
            }
            for arm in plan.arms
        ],
        "cells": [
            {**asdict(cell), "recipe_hash": plan.arm(cell.arm).recipe.hash} for cell in plan.cells
        ],
        "estimate": {k: _finite(v) for k, v in asdict(plan.estimate).items()},
        "plugins": dict(plan.plugins),
    }
    folder.mkdir(parents=True, exist_ok=True)
    replace_file(folder / PLAN_FILE, (json.dumps(document, indent=1) + "\n").encode())


def read_plan(folder: Path) -> Plan:
    """The plan of an ablation's folder.

    Raises:
        GrpoError: GR224 when there is none, or it cannot be read or was changed by hand.
    """
    with _readable(folder):
        document = json.loads((folder / PLAN_FILE).read_bytes())
        plan = _plan(document)
        if plan_hash(plan) != document["hash"]:
            raise ValueError("it does not match its hash, so it was changed")
        return plan


@contextmanager
def _readable(folder: Path) -> Iterator[None]:
    """What is wrong with the plan that is read within, as GR224."""
    path = folder / PLAN_FILE
    try:
        yield
    except FileNotFoundError as problem:
        raise error("GR224", f"{folder} has no {PLAN_FILE}") from problem
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as problem:
        # pydantic's ValidationError is a ValueError.
        what = (str(problem).splitlines() or [type(problem).__name__])[0]
        lacks = "it lacks " if isinstance(problem, KeyError) else ""
        raise error(
            "GR224",
            f"{path} cannot be read: {lacks}{what}",
            hint="bring it back from a copy, or give the ablation another --name",
        ) from problem


def planned_steps(folder: Path, budget: str | None) -> int | None:
    """What a budget came to in the plan that is there; None without one.

    Estimates change with every run, and a plan must not.

    Raises:
        GrpoError: GR224 when the plan cannot be read.
    """
    if not (folder / PLAN_FILE).exists():
        return None
    plan = read_plan(folder)
    return plan.arms[0].recipe.optim.steps if plan.budget == budget else None


def read_outline(folder: Path) -> Outline:
    """What looking on needs of a plan, without its recipes.

    Raises:
        GrpoError: GR224 when there is none, or it cannot be read.
    """
    with _readable(folder):
        document = json.loads((folder / PLAN_FILE).read_bytes())
        return Outline(
            control=document["control"],
            steps={arm["name"]: arm["recipe"]["optim"]["steps"] for arm in document["arms"]},
            cells=tuple(Cell(c["arm"], c["seed"], c["run"]) for c in document["cells"]),
        )


def plugin_files(folder: Path) -> list[Path]:
    """The plug-ins that must be loaded before the plan's recipes can be read."""
    try:
        return [Path(file) for file in json.loads((folder / PLAN_FILE).read_bytes())["plugins"]]
    except (OSError, ValueError, KeyError, TypeError):
        return []  # `read_plan` says what is wrong with it


def merged(folder: Path, plan: Plan) -> Plan:
    """The plan to go on with: what is on disk, with the seeds of both.

    Raises:
        GrpoError: GR223 when the plan on disk is another one, with every difference.
    """
    if not (folder / PLAN_FILE).exists():
        return plan
    old = read_plan(folder)
    if changes := list(_changes(_decided(old), _decided(plan))):
        shown = "; ".join(changes[:6]) + ("; ..." if len(changes) > 6 else "")
        raise error(
            "GR223",
            f"the ablation `{plan.name}` was planned otherwise: {shown}",
            hint="give this one a `--name` of its own; the old one stays as it is",
        )
    # The estimate of the plan that was made first is what the design was chosen by.
    return with_seeds(old, plan.seeds)


def _decided(plan: Plan) -> dict[str, Any]:
    def experiment(arm: PlanArm) -> dict[str, Any]:
        tree = arm.recipe.tree()
        for key in WITHOUT_EFFECT:
            *path, last = key.split(".")
            node = tree
            for name in path:
                node = node[name]
            node.pop(last, None)
        return {"identity": arm.identity, "recipe": tree}

    return {
        "axes": [
            {
                "name": axis.name,
                "summary": axis.summary,
                "arms": list(axis.arms),
                "keys": list(axis.keys),
            }
            for axis in plan.axes
        ],
        "design": plan.design,
        "control": plan.control,
        "primary": {
            "metric": plan.primary.metric,
            "at": "final" if plan.primary.step is None else plan.primary.step,
        },
        "budget": plan.budget,
        "arms": {arm.name: experiment(arm) for arm in plan.arms},
    }


def _plan(document: Mapping[str, Any]) -> Plan:
    at = document["primary"]["at"]
    arms = tuple(
        PlanArm(
            name=arm["name"],
            recipe=Recipe.model_validate_json(json.dumps(arm["recipe"])),
            differs=arm["differs"],
            origins=arm["origins"],
            sources=arm["sources"],
            identity=arm["identity"],
        )
        for arm in document["arms"]
    )
    if document["version"] != VERSION:
        raise ValueError(f"version {document['version']}")
    if [arm["recipe_hash"] for arm in document["arms"]] != [arm.recipe.hash for arm in arms]:
        raise ValueError(
            "its recipes come out otherwise: changed by hand, or made by another version of grpo "
            "(`grpo compare` still judges its runs)"
        )
    estimate: dict[str, Any] = {
        k: math.nan if v is None else v for k, v in document["estimate"].items()
    }
    plan = Plan(
        name=document["name"],
        recipe=document["recipe"],
        setup=document["setup"],
        axes=tuple(
            PlanAxis(a["name"], a["summary"], tuple(a["arms"]), tuple(a["keys"]))
            for a in document["axes"]
        ),
        design=document["design"],
        control=document["control"],
        seeds=tuple(document["seeds"]),
        primary=Primary(document["primary"]["metric"], None if at == "final" else int(at)),
        budget=document["budget"],
        arms=arms,
        estimate=Estimate(**estimate),
        control_why=document.get("control_why", ""),
        plugins=document["plugins"],
        seeds_added=tuple(tuple(seeds) for seeds in document["seeds_added"]),
    )
    found = {(cell["arm"], cell["seed"]): cell["run"] for cell in document["cells"]}
    if found != {(cell.arm, cell.seed): cell.run for cell in plan.cells}:
        raise ValueError("its cells are not those of its arms and seeds")
    return plan


def _changes(old: Any, new: Any, at: str = "") -> Iterator[str]:
    """What is not the same, one readable line a leaf."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in [*old, *(k for k in new if k not in old)]:
            place = f"{at}.{key}" if at else key
            if key not in new:
                yield f"`{place}` is gone"
            elif key not in old:
                yield f"`{place}` is new"
            else:
                yield from _changes(old[key], new[key], place)
    elif old != json.loads(json.dumps(new)):
        yield f"`{at}` was {_brief(old)} and is {_brief(new)}"


def _brief(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
