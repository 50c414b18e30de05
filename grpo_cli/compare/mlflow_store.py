"""`mlflow:EXPERIMENT` -> run records, from what the mirror wrote there.

Metrics, seeds and states come from the store. What is never mirrored (per-question rows, the
environment) is read from the run folder that the run's tag names, where that folder is still there;
otherwise it is unknown. Must not import torch; mlflow is imported in functions.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpo_cli.compare.health import CURVES, HEALTH
from grpo_cli.compare.model import Plan, RunRecord
from grpo_cli.compare.read import (
    PLAN,
    Found,
    effective_leaves,
    parse_plan,
    question_scores,
    read_facts,
    read_plan,
)
from grpo_cli.errors import GrpoError, error
from grpo_cli.mlflow_run import settings, shown_uri, sqlite_path
from grpo_cli.recipe.problems import did_you_mean
from grpo_cli.runfiles import read_info
from grpo_cli.types import StepRecord

if TYPE_CHECKING:
    from mlflow.entities import Run
    from mlflow.tracking import MlflowClient


def read_experiment(name: str, uri: str, metrics: Sequence[str]) -> Found:
    """The runs of an experiment, named in full or without `grpo/`, with the metrics that matter.

    Raises:
        GrpoError: GR206 when there is no such experiment or no run in it, GR207 when the store
            cannot be reached.
    """
    path = sqlite_path(uri)
    if path is not None and not path.exists():
        # Opening it would make an empty store.
        raise error(
            "GR207",
            f"no MLflow store at {path}",
            hint="name one with --tracking-uri, or --runs-dir",
        )
    try:
        with settings(MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR="false"):
            return _read(name, uri, metrics)
    except GrpoError:
        raise
    except Exception as problem:
        # Whatever a tracker raises, a person sees one line.
        line = (str(problem).strip() or type(problem).__name__).splitlines()[0]
        raise error(
            "GR207",
            f"the tracker {shown_uri(uri)} cannot be used: {line[:160]}",
            hint="check --tracking-uri or MLFLOW_TRACKING_URI; run folders can be compared too",
        ) from problem


def _read(name: str, uri: str, metrics: Sequence[str]) -> Found:
    import mlflow.store.db.utils
    from mlflow.tracking import MlflowClient

    mlflow.store.db.utils.MAX_RETRY_COUNT = 1
    client = MlflowClient(tracking_uri=uri, registry_uri=uri)
    experiment = None
    for full in (name, f"grpo/{name}"):
        experiment = experiment or client.get_experiment_by_name(full)
    if experiment is None:
        names = [found.name.removeprefix("grpo/") for found in client.search_experiments()]
        raise error(
            "GR206",
            f"no experiment {name!r} in {shown_uri(uri)}",
            hint=did_you_mean(name, names) or f"there are: {', '.join(sorted(names)) or 'none'}",
        )
    short = str(experiment.name).removeprefix("grpo/")
    plan: Plan | None = None
    newest: dict[str, Run] = {}
    for run in _runs(client, str(experiment.experiment_id)):
        tags = run.data.tags
        if tags.get("grpo.kind") == "ablation":
            plan = plan or _plan(client, run, short)
        elif "grpo.run_id" in tags:
            # A run that was begun again has the same folder; the search gives the newest first.
            newest.setdefault(tags.get("grpo.run_dir", run.info.run_id), run)
    if not newest:
        raise error("GR206", f"the experiment {name!r} has no runs of grpo")
    for run in newest.values():
        folder = _folder(run.data.tags)
        # The plan on disk knows which cells are missing.
        if folder is not None and (folder.parent.parent / PLAN).is_file():
            plan = read_plan(folder.parent.parent / PLAN)
            break
    wanted = {*metrics, *HEALTH, *CURVES}
    if plan is not None and plan.primary:
        wanted.add(plan.primary.partition("@")[0])
    records = [_record(client, run, short, wanted) for run in newest.values()]
    if plan is not None:
        records = [replace(record, arm=record.name) for record in records]
        have = {(record.name, record.seed) for record in records}
        plan = replace(plan, missing=tuple(cell for cell in plan.missing if cell not in have))
    records.sort(key=lambda record: record.place)
    return Found(tuple(records), () if plan is None else (plan,))


def _runs(client: MlflowClient, experiment: str) -> Iterator[Run]:
    token: str | None = None
    while True:
        page = client.search_runs(
            [experiment],
            max_results=1000,
            order_by=["attributes.start_time DESC"],
            page_token=token,
        )
        yield from page
        token = page.token
        if not token:
            return


def _record(client: MlflowClient, run: Run, experiment: str, wanted: set[str]) -> RunRecord:
    tags = run.data.tags
    folder = _folder(tags)
    identity = {
        key.removeprefix("grpo.").removesuffix("_sha"): value
        for key, value in tags.items()
        if key.startswith("grpo.") and key.endswith("_sha")
    }
    recipe_name, reason = experiment, None
    if folder is not None:
        info = read_info(folder)
        recipe_name, reason = info.recipe, info.reason
    return RunRecord(
        place=tags.get("grpo.run_dir", f"mlflow:{run.info.run_id}"),
        run_id=tags["grpo.run_id"],
        recipe_name=recipe_name,
        name=tags.get("grpo.arm", experiment),
        seed=int(tags["grpo.seed"]),
        recipe_hash=tags["grpo.recipe_hash"],
        state=tags.get("grpo.status", "running"),
        reason=reason,
        leaves=effective_leaves(_artifact(client, run, "recipe.json")),
        facts=identity if folder is None else read_facts(folder),
        records=_records(client, run, wanted),
        scores_at=cache(lambda step: None if folder is None else question_scores(folder, step)),
    )


def _folder(tags: dict[str, str]) -> Path | None:
    """The run folder, if it is on this machine and still holds this run."""
    path = tags.get("grpo.run_dir")
    if path is None:
        return None
    try:
        return Path(path) if read_info(Path(path)).run_id == tags["grpo.run_id"] else None
    except GrpoError:
        return None


def _records(client: MlflowClient, run: Run, wanted: set[str]) -> tuple[StepRecord, ...]:
    steps: dict[int, dict[str, float]] = {}
    times: dict[int, int] = {}
    for key in sorted(wanted & run.data.metrics.keys()):
        for point in client.get_metric_history(run.info.run_id, key):
            steps.setdefault(point.step, {})[key] = point.value
            times[point.step] = point.timestamp
    return tuple(StepRecord(step, times[step], steps[step]) for step in sorted(steps))


def _artifact(client: MlflowClient, run: Run, name: str) -> dict[str, Any]:
    from mlflow.exceptions import MlflowException

    with tempfile.TemporaryDirectory() as folder:
        try:
            path = client.download_artifacts(run.info.run_id, name, folder)
            value = json.loads(Path(path).read_bytes())
        except (OSError, ValueError, MlflowException) as problem:
            raise error(
                "GR206",
                f"the MLflow run {run.info.run_id} has no readable {name}",
                hint="`grpo runs sync` sends what is missing",
            ) from problem
    return dict(value)


def _plan(client: MlflowClient, run: Run, name: str) -> Plan | None:
    """The plan that an ablation's parent run has as an artifact; all its cells count as missing."""
    try:
        tree = _artifact(client, run, PLAN)
        cells = [(str(c["arm"]), int(c["seed"]), Path(c["run"])) for c in tree["cells"]]
        plan = parse_plan(tree, name)
    except (GrpoError, KeyError, TypeError, ValueError, AttributeError):
        return None  # the arms are tags of the runs; only their control and axis are unknown
    missing = tuple((arm, seed) for arm, seed, _ in cells)
    return replace(plan, arms={path: arm for arm, _, path in cells}, missing=missing)
