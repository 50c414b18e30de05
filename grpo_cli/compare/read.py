"""Targets -> run records: run folders, folders of them, globs, ablations with a `plan.json`.

Must not import torch or mlflow. Nothing on disk is changed.
"""

from __future__ import annotations

import glob
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from grpo_cli.compare.model import JSON, Plan, QuestionScores, RunRecord
from grpo_cli.errors import error
from grpo_cli.evaluate import scores_by_question
from grpo_cli.recipe.problems import did_you_mean
from grpo_cli.recipe.schema import has_effect
from grpo_cli.runfiles import (
    SUPERSEDED,
    damaged,
    find_runs,
    read_eval,
    read_info,
    read_metrics,
    run_state,
)
from grpo_cli.types import Status

PLAN = "plan.json"

_SCORED = frozenset({Status.OK, Status.UNPARSED})

_LIBRARIES = ("torch", "transformers", "peft", "vllm", "grpo-cli")
"""Of `env.json`: those that can change a result."""


@dataclass(frozen=True, slots=True)
class Found:
    """What the targets hold, in their order."""

    runs: tuple[RunRecord, ...]
    plans: tuple[Plan, ...]


def read_targets(targets: Sequence[str], runs_dir: Path) -> Found:
    """The runs of all targets, each once.

    A target is a run folder, a folder that holds some, an ablation folder or the name of one in
    `runs_dir/ablations`, a glob, or a path below `runs_dir`.

    Raises:
        GrpoError: GR206 when a target has no run, GR204 when a run or a plan cannot be read.
    """
    runs: dict[Path, RunRecord] = {}
    plans: dict[Path, Plan] = {}
    for target in targets:
        for folder in _folders(target, runs_dir):
            for path in _run_folders(folder):
                home = path.resolve().parent.parent
                if home not in plans and (home / PLAN).is_file():
                    # Only a whole ablation can lack a cell; of a part the rest was not asked for.
                    plan = read_plan(home / PLAN)
                    whole = home.is_relative_to(folder.resolve())
                    plans[home] = plan if whole else replace(plan, missing=())
                planned = plans.get(home)
                arm = planned.arms.get(path.resolve()) if planned else None
                if planned and arm is None and path != folder:
                    continue  # beside the cells, and no part of the ablation
                runs.setdefault(path.resolve(), read_run(path, arm))
    if not runs:
        raise error("GR206", f"no runs in {', '.join(targets)}", hint="`grpo runs ls` lists runs")
    return Found(tuple(runs.values()), tuple(plans.values()))


def read_run(path: Path, arm: str | None = None) -> RunRecord:
    """The record of one run folder.

    Raises:
        GrpoError: GR206 when it is no run folder, GR204 when it is damaged.
    """
    info = read_info(path)
    return RunRecord(
        place=str(path),
        run_id=info.run_id,
        recipe_name=info.recipe,
        name=info.name,
        seed=info.seed,
        recipe_hash=info.recipe_hash,
        state=run_state(path, info),
        reason=info.reason,
        leaves=effective_leaves(_read_json(path / "recipe.json")),
        facts=read_facts(path),
        records=tuple(read_metrics(path)),
        scores_at=cache(lambda step: question_scores(path, step)),
        arm=arm,
    )


def read_facts(path: Path) -> dict[str, str]:
    """What the run ran against and on, from `identity.json` and `env.json`."""
    env = _read_json(path / "env.json")
    facts = {key: str(value) for key, value in _read_json(path / "identity.json").items()}
    packages = env.get("packages")
    for name in _LIBRARIES:
        version = packages.get(name) if isinstance(packages, dict) else None
        if version is not None:
            facts[f"{name} version"] = str(version)
    for key, name in (("device", "device"), ("gpu", "gpu"), ("git_commit", "commit")):
        if env.get(key) is not None:
            facts[name] = str(env[key])
    return facts


def question_scores(path: Path, step: int) -> QuestionScores | None:
    """Mean score of every held-out question at a step; None when the run folder has no rows.

    Reads the file as one JSON list: a comparison reads thousands of rows of a hundred runs, and
    `read_eval` would take most of its time.

    Raises:
        GrpoError: GR204 when a row cannot be read.
    """
    try:
        lines = (path / "eval" / f"step-{step:06d}.jsonl").read_bytes().splitlines()
    except (FileNotFoundError, NotADirectoryError):
        return None
    scores: dict[str, list[float]] = {}
    try:
        for row in json.loads(b"[" + b",".join(lines) + b"]"):
            if row["status"] in _SCORED:
                scores.setdefault(row["question_id"], []).append(float(row["score"]))
    except (ValueError, KeyError, TypeError):
        # It names the line.
        scores = scores_by_question(read_eval(path, step))
    return {question: sum(found) / len(found) for question, found in scores.items() if found}


def effective_leaves(tree: Mapping[str, Any]) -> dict[str, JSON]:
    """The dotted leaves of a recipe as it was stored, without those that have no effect.

    Read as plain JSON: a run of an older version, or one with a plug-in, can be compared too.
    """
    found: dict[str, JSON] = {}

    def walk(prefix: str, value: JSON) -> None:
        if isinstance(value, dict) and value:
            for key, child in value.items():
                walk(f"{prefix}.{key}" if prefix else key, child)
        elif has_effect(prefix):
            found[prefix] = value

    walk("", dict(tree))
    return found


def parse_plan(tree: Mapping[str, Any], name: str) -> Plan:
    """What is known of a plan, whatever else stands in it."""
    primary, direction = tree.get("primary"), None
    if isinstance(primary, dict):
        direction = primary.get("direction")
        primary = f"{primary['metric']}@{primary.get('at', 'final')}"
    axes = tree.get("axes")
    keys: list[str] | None = [] if isinstance(axes, list) else None
    for axis in axes if isinstance(axes, list) else ():
        listed = axis.get("keys") if isinstance(axis, dict) else None
        keys = None if keys is None or not isinstance(listed, list) else [*keys, *map(str, listed)]
    return Plan(
        name, tree.get("control"), primary, direction, None if keys is None else tuple(keys)
    )


def read_plan(path: Path) -> Plan:
    """The plan of an ablation, with the arm of every run folder that is there.

    Raises:
        GrpoError: GR204 when it cannot be read.
    """
    arms: dict[Path, str] = {}
    missing = []
    try:
        tree = json.loads(path.read_bytes())
        plan = parse_plan(tree, path.parent.name)
        for cell in tree["cells"]:
            folder = path.parent / str(cell["run"])
            if (folder / "run.json").is_file():
                arms[folder.resolve()] = str(cell["arm"])
            else:
                missing.append((str(cell["arm"]), int(cell["seed"])))
    except (OSError, KeyError, TypeError, ValueError, AttributeError) as problem:
        raise error(
            "GR204",
            f"{path} is damaged: it is not the plan of an ablation",
            hint="bring it back from a copy; without the file its runs are compared as any others",
        ) from problem
    return replace(plan, arms=arms, missing=tuple(missing))


def _folders(target: str, runs_dir: Path) -> Iterator[Path]:
    """The folders that one target means; at least one."""
    if Path(target).is_dir():
        yield Path(target)
        return
    for folder in (runs_dir / "ablations" / target, runs_dir / target):
        if folder.is_dir():
            yield folder
            return
    matches = sorted(glob.glob(target, recursive=True)) if glob.has_magic(target) else []
    folders = [Path(match) for match in matches if Path(match).is_dir()]
    if folders:
        yield from folders
        return
    # A part of a path, as `grpo runs show` takes it.
    runs = {run.relative_to(runs_dir).as_posix(): run for run in find_runs(runs_dir)}
    parts = [run for name, run in runs.items() if target.strip("/") in name]
    if not parts:
        names = [path.name for path in sorted((runs_dir / "ablations").glob("*"))]
        hint = did_you_mean(target, [*names, *{name.split("/")[0]: None for name in runs}])
        raise error(
            "GR206",
            f"no runs in {target!r}",
            hint=hint or "name a run folder, an ablation, a glob or mlflow:EXPERIMENT",
        )
    yield from parts


def _run_folders(folder: Path) -> list[Path]:
    """Every run folder at or below `folder`; what a restart set aside is left out."""
    if (folder / "run.json").is_file():
        return [folder]
    found = []
    for here, inside, files in os.walk(folder):
        if "run.json" in files:
            found.append(Path(here))
            inside.clear()
        inside[:] = [n for n in inside if SUPERSEDED not in n and not n.startswith(".")]
    return sorted(found)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError) as problem:
        raise damaged(path, "it cannot be read") from problem
    if not isinstance(value, dict):
        raise damaged(path, "it is not a JSON object")
    return value
