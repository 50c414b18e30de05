"""One run folder's copy in one MLflow store: what to send, and what was sent already.

Sending is a replay of the folder. `mlflow.json` there holds, for every store, the newest step that
the store acknowledged; a step's timestamp is the one on record, so that sending it once more after
a crash changes nothing. Steps that a resume does again are not sent again: MLflow cannot take a
point back, and would show both. Must not import torch; mlflow is imported in functions.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from filelock import FileLock

from grpo_cli.checkpoint import replace_file
from grpo_cli.errors import error
from grpo_cli.mlflow_ablation import ablation_of, parent_run
from grpo_cli.rundir import RunInfo, read_info, read_metrics, run_state
from grpo_cli.types import StepRecord

if TYPE_CHECKING:
    from mlflow.entities import Run
    from mlflow.tracking import MlflowClient

HTTP_TIMEOUT_S = 5
MAX_METRICS = 1000
"""Most metrics in one call (MLflow's limit)."""
MAX_VALUE = 6000
"""Most characters of a parameter; MLflow would cut a longer one without a word."""

_ENDED = {
    "done": "FINISHED",
    "failed": "FAILED",
    "stopped": "KILLED",
    "interrupted": "KILLED",
}
_SETTINGS = {
    # Every call to a dead server would block for minutes; retrying is our own affair.
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": str(HTTP_TIMEOUT_S),
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_ENABLE_ASYNC_LOGGING": "false",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "GIT_PYTHON_REFRESH": "quiet",
}


@contextmanager
def settings(**more: str) -> Iterator[None]:
    """Environment variables that make MLflow fail fast and keep to itself."""
    before = {name: os.environ.get(name) for name in _SETTINGS | more}
    os.environ.update(_SETTINGS | more)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def shown_uri(uri: str) -> str:
    """The URI without user, password and query, fit to be stored and shown."""
    path = sqlite_path(uri)
    if path is not None:
        return f"sqlite:///{path}"
    parts = urlsplit(uri)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment="").geturl()


def sqlite_path(uri: str) -> Path | None:
    """The absolute path of a SQLite store, or None for another kind of store."""
    if not uri.startswith("sqlite:///"):
        return None
    return Path(uri.removeprefix("sqlite:///").partition("?")[0]).absolute()


class MlflowRun:
    """The open MLflow run of a run folder. Any method may raise what MLflow raises.

    Opening finds or makes the experiment and the run; a run that somebody deleted from the store
    is replaced by a new one. The caller holds the folder's `mlflow.lock`.
    """

    def __init__(self, run: Path, uri: str) -> None:
        self._run = run
        self._uri = uri
        self.run_id = read_info(run).run_id
        self._seen: os.stat_result | None = None
        self._records: list[StepRecord] = []
        self._client = connect(uri)
        self._place = read_places(run, self.run_id).get(shown_uri(uri), {})
        self._id = self._open()

    def send(self) -> None:
        """Send what is new: steps, how the run ended, artifacts."""
        # Asked before the metrics are read, so that none can come after it.
        info = read_info(self._run)
        state = run_state(self._run, info)
        self._send_metrics()
        self._send_state(info, state)
        self._send_artifacts(state)

    def _send_metrics(self) -> None:
        from mlflow.entities import Metric

        path = self._run / "metrics.jsonl"
        stat = path.stat() if path.exists() else None
        if stat is None or not _is_newer(stat, self._seen):
            return
        self._records, self._seen = read_metrics(self._run), stat
        new = [r for r in self._records if r.step > self._place["last_step"]]
        for batch in _batches(new):
            metrics = [
                Metric(key, value, record.unix_ms, record.step)
                for record in batch
                for key, value in record.scalars.items()
                if not math.isnan(value)
            ]
            self._client.log_batch(self._id, metrics=metrics)
            self._save(last_step=batch[-1].step)

    def _send_state(self, info: RunInfo, state: str) -> None:
        if self._place["state"] == state:
            return
        self._client.set_tag(self._id, "grpo.status", state)
        if state in _ENDED:
            # Explicit: an exception or a kill would leave the run FINISHED or RUNNING for ever.
            end = _unix_ms(info.ended) if info.ended else self._last_ms()
            self._client.set_terminated(self._id, _ENDED[state], end)
        elif self._place["state"] in _ENDED:
            self._client.update_run(self._id, status="RUNNING")
        self._save(state=state)

    def _last_ms(self) -> int | None:
        return self._records[-1].unix_ms if self._records else None

    def _send_artifacts(self, state: str) -> None:
        have = self._place["artifacts"]
        if "recipe.json" not in have:
            self._client.log_artifact(self._id, str(self._run / "recipe.json"))
            self._save(artifacts=[*have, "recipe.json"])
        adapter = self._run / "adapter"
        if state == "done" and "adapter" not in have and adapter.is_dir():
            self._client.log_artifacts(self._id, str(adapter.resolve()), "adapter")
            self._save(artifacts=[*self._place["artifacts"], "adapter"])

    def _open(self) -> str:
        info = read_info(self._run)
        found = self._find()
        if found is None:
            experiment = ensure_experiment(
                self._client, _experiment_name(info), self._uri, self._run.absolute().parents[2]
            )
            found = self._client.create_run(
                experiment,
                start_time=_unix_ms(info.started),
                run_name=f"{info.name} s{info.seed}",
                tags={**_tags(self._run, info), **self._parent(experiment)},
            )
        run_id = str(found.info.run_id)
        same = self._place.get("mlflow_run_id") == run_id
        fresh: dict[str, Any] = {"last_step": -1, "state": None, "artifacts": []}
        self._place = {**fresh, **(self._place if same else {})}
        self._save(experiment_id=found.info.experiment_id, mlflow_run_id=run_id)
        self._send_params(found)
        return run_id

    def _find(self) -> Run | None:
        from mlflow.exceptions import MlflowException

        if known := self._place.get("mlflow_run_id"):
            try:
                run = self._client.get_run(known)
            except MlflowException as problem:
                if problem.error_code != "RESOURCE_DOES_NOT_EXIST":
                    raise
            else:
                return run if run.info.lifecycle_stage == "active" else None
        # A crash between making the run and writing `mlflow.json` leaves one to be found.
        experiment = self._client.get_experiment_by_name(_experiment_name(read_info(self._run)))
        if experiment is None:
            return None
        found = self._client.search_runs(
            [experiment.experiment_id], f"tags.`grpo.run_id` = '{self.run_id}'", max_results=1
        )
        return found[0] if found else None

    def _parent(self, experiment: str) -> dict[str, str]:
        """The tags that make a cell of an ablation a child of its parent run."""
        folder = ablation_of(self._run)
        if folder is None:
            return {}
        parent = parent_run(folder, self._client, experiment, shown_uri(self._uri))
        return {"mlflow.parentRunId": parent, "grpo.kind": "cell"}

    def _send_params(self, run: Run) -> None:
        from mlflow.entities import Param

        recipe = json.loads((self._run / "recipe.json").read_bytes())
        have = run.data.params
        params = [Param(key, value) for key, value in recipe_params(recipe) if key not in have]
        self._client.log_batch(run.info.run_id, params=params)

    def _save(self, **changes: Any) -> None:
        self._place = {**self._place, **changes}
        places = {**read_places(self._run, self.run_id), shown_uri(self._uri): self._place}
        text = json.dumps({"run_id": self.run_id, "stores": places}, indent=1)
        replace_file(self._run / "mlflow.json", text.encode())


def read_places(run: Path, run_id: str) -> dict[str, dict[str, Any]]:
    """What each store has of this run, by its shown URI."""
    try:
        content = json.loads((run / "mlflow.json").read_bytes())
        # A folder that was begun again keeps its path, so the file must name its run.
        return dict(content["stores"]) if content["run_id"] == run_id else {}
    except (OSError, ValueError, KeyError, TypeError):
        # Sending everything again is harmless.
        return {}


def recipe_params(recipe: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Dotted leaves of a recipe; a value that is too long is cut and ends in its hash."""
    for key, value in recipe.items():
        if isinstance(value, Mapping):
            yield from recipe_params(value, f"{prefix}{key}.")
            continue
        text = value if isinstance(value, str) and value else json.dumps(value)
        if len(text) > MAX_VALUE:
            digest = hashlib.sha256(text.encode()).hexdigest()
            text = f"{text[: MAX_VALUE - 100]}... sha256:{digest}"
        yield f"{prefix}{key}", text


def _batches(records: list[StepRecord]) -> Iterator[list[StepRecord]]:
    """Whole steps, as many as one call may carry."""
    batch: list[StepRecord] = []
    size = 0
    for record in records:
        if batch and size + len(record.scalars) > MAX_METRICS:
            yield batch
            batch, size = [], 0
        batch.append(record)
        size += len(record.scalars)
    if batch:
        yield batch


def _is_newer(now: os.stat_result, then: os.stat_result | None) -> bool:
    key = (now.st_ino, now.st_size, now.st_mtime_ns)
    return then is None or key != (then.st_ino, then.st_size, then.st_mtime_ns)


def connect(uri: str) -> MlflowClient:
    """A client of the store; a SQLite store is made here, by one process at a time."""
    import mlflow.store.db.utils
    from mlflow.tracking import MlflowClient

    # Ten tries, ever slower, would take 100 seconds for a database that is not there.
    mlflow.store.db.utils.MAX_RETRY_COUNT = 1
    path = sqlite_path(uri)
    if path is None:
        return MlflowClient(tracking_uri=uri, registry_uri=uri)
    path.parent.mkdir(parents=True, exist_ok=True)
    # Two processes that make a fresh store at once break each other.
    with FileLock(f"{path}.lock", timeout=60):
        client = MlflowClient(tracking_uri=uri, registry_uri=uri)
        client.search_experiments(max_results=1)
        return client


def ensure_experiment(client: MlflowClient, name: str, uri: str, home: Path) -> str:
    """The id of an experiment, made when it is not there.

    `home` is where artifacts go when the store has no place for them.

    Raises:
        GrpoError: GR207 when somebody deleted it.
    """
    from mlflow.exceptions import MlflowException

    found = client.get_experiment_by_name(name)
    if found is None:
        try:
            return str(client.create_experiment(name, _artifacts(home, uri)))
        except MlflowException as problem:
            if problem.error_code != "RESOURCE_ALREADY_EXISTS":
                raise
            found = client.get_experiment_by_name(name)
    if found is None or found.lifecycle_stage != "active":
        raise error(
            "GR207",
            f"the experiment {name} was deleted in {shown_uri(uri)}",
            hint="bring it back with `mlflow experiments restore`, or purge it (`mlflow gc`)",
        )
    return str(found.experiment_id)


def _artifacts(home: Path, uri: str) -> str | None:
    if uri.startswith(("http://", "https://", "databricks")):
        return None
    # A database has no place for files of its own, and MLflow's default is the current folder.
    path = sqlite_path(uri)
    root = path.parent if path else home
    return str(root / "mlartifacts")


def _experiment_name(info: RunInfo) -> str:
    return f"grpo/{info.recipe}"


def _tags(run: Path, info: RunInfo) -> dict[str, str]:
    env = json.loads((run / "env.json").read_bytes())
    identity = json.loads((run / "identity.json").read_bytes())
    tags = {
        "grpo.kind": "train",
        "grpo.arm": info.name,
        "grpo.seed": str(info.seed),
        "grpo.recipe_hash": info.recipe_hash,
        "grpo.run_id": info.run_id,
        "grpo.run_dir": str(run.absolute()),
        **{f"grpo.{key}_sha": value for key, value in identity.items()},
    }
    if env["git_commit"]:
        tags["grpo.git_commit"] = env["git_commit"]
        tags["grpo.git_dirty"] = str(env["git_dirty"]).lower()
    return tags


def _unix_ms(iso: str) -> int:
    return int(datetime.fromisoformat(iso).timestamp() * 1000)
