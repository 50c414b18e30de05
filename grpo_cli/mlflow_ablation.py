"""An ablation's parent run in MLflow: the plan, one child per cell, at the end the comparison.

`mlflow.json` in the ablation's folder holds, for every store, the id of the parent. Must not import
torch; mlflow is imported in functions.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import FileLock

from grpo_cli.checkpoint import replace_file
from grpo_cli.errors import error

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

PLAN = "plan.json"
REPORT = "report"
"""Folder of the ablation that is sent to the parent as it stands."""

_PARAMS = ("design", "control", "recipe", "setup", "budget")


def ablation_of(run: Path) -> Path | None:
    """The ablation's folder that a run folder is a cell of, or None."""
    folder = run.absolute().parents[1]
    return folder if (folder / PLAN).is_file() else None


def parent_run(folder: Path, client: MlflowClient, experiment: str, store: str) -> str:
    """The id of the parent run in the store; made when it is not there yet.

    `store` is the address without secrets. Any process may be the first to need it.

    Raises:
        GrpoError: GR224 when the plan cannot be read.
    """
    with FileLock(folder / "mlflow.lock", timeout=60):
        places = _places(folder)
        plan = _read_plan(folder)
        found = places.get(store, {}).get("mlflow_run_id") or _find(client, experiment, folder)
        if found is None:
            run = client.create_run(
                experiment,
                run_name=folder.name,
                tags={
                    "grpo.kind": "ablation",
                    "grpo.plan_hash": str(plan["hash"]),
                    "grpo.run_dir": str(folder.absolute()),
                    "mlflow.note.content": _note(plan),
                },
            )
            found = str(run.info.run_id)
            for key in _PARAMS:
                client.log_param(found, key, str(plan[key]))
            primary = plan["primary"]
            client.log_param(found, "primary", f"{primary['metric']}@{primary['at']}")
        if places.get(store, {}).get("mlflow_run_id") != found:
            _save(folder, {**places, store: {"mlflow_run_id": found, "cells": 0}})
        return found


def send_plan(folder: Path, client: MlflowClient, parent: str, store: str) -> None:
    """Send the plan, once per number of cells: more seeds make it longer."""
    places = _places(folder)
    cells = len(_read_plan(folder)["cells"])
    if places.get(store, {}).get("cells") != cells:
        client.log_artifact(parent, str(folder / PLAN))
        _save(folder, {**places, store: {**places.get(store, {}), "cells": cells}})


def finish_parent(folder: Path, client: MlflowClient, parent: str, status: str) -> None:
    """Send the comparison and say how the ablation ended: FINISHED, FAILED or KILLED."""
    report = folder / REPORT
    for file in sorted(report.glob("*")) if report.is_dir() else ():
        client.log_artifact(parent, str(file), REPORT)
    client.set_terminated(parent, status, int(time.time() * 1000))


def _find(client: MlflowClient, experiment: str, folder: Path) -> str | None:
    """A parent that a crash left without a note of it in the folder."""
    wanted = f"tags.`grpo.run_dir` = '{folder.absolute()}' AND tags.`grpo.kind` = 'ablation'"
    runs = client.search_runs([experiment], wanted, max_results=1)
    return str(runs[0].info.run_id) if runs else None


def _read_plan(folder: Path) -> dict[str, Any]:
    """The plan's document, with every key that is used here."""
    path = folder / PLAN
    try:
        plan: dict[str, Any] = json.loads(path.read_bytes())
        # What is missing must show here, not in the middle of sending.
        _ = [plan[key] for key in ("hash", "cells", *_PARAMS)]
        _ = [_note(plan), plan["primary"]["metric"], plan["primary"]["at"]]
    except (OSError, ValueError, KeyError, TypeError) as problem:
        what = f"it lacks {problem}" if isinstance(problem, KeyError) else type(problem).__name__
        raise error(
            "GR224",
            f"{path} cannot be read: {what}",
            hint="bring it back from a copy, or give the ablation another --name",
        ) from problem
    return plan


def _note(plan: dict[str, Any]) -> str:
    names = ", ".join(arm["name"] for arm in plan["arms"])
    return f"{plan['design']} ablation of {plan['recipe']}: {names}; control {plan['control']}"


def _places(folder: Path) -> dict[str, dict[str, Any]]:
    try:
        return dict(json.loads((folder / "mlflow.json").read_bytes())["stores"])
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def _save(folder: Path, places: dict[str, dict[str, Any]]) -> None:
    text = json.dumps({"stores": places}, indent=1)
    replace_file(folder / "mlflow.json", text.encode())
