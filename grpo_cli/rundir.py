"""The run folder `runs/<recipe>/<name>/s<seed>-<hash8>/`: everything a run leaves behind.

It is enough to read, resume, explain and compare a run without a server. One process at a time
holds its `lock`; every file but `metrics.jsonl` is replaced whole, and that one only grows by a
synced line. Must not import torch or mlflow.

    run.json        RunInfo                     recipe.json, origins.json, sources/  what was asked
    identity.json   what it ran against         env.json, cmd.txt                    where it ran
    audit.json      what is known of the verifier, if it was audited
    metrics.jsonl   one StepRecord a line       rollouts/, eval/                     a file a step
    checkpoints/    with the link `adapter`     superseded/               what a resume set aside
    mlflow.json     what MLflow has, logs/      lock, lock.json                      who holds it
"""

from __future__ import annotations

import errno
import gzip
import hashlib
import io
import json
import os
import re
import shlex
import shutil
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from grpo_cli.checkpoint import crashpoint, disk_errors, json_line, replace_file, sync_dir
from grpo_cli.environment import environment
from grpo_cli.errors import error
from grpo_cli.recipe.schema import Recipe, has_effect
from grpo_cli.runfiles import (
    SUPERSEDED,
    RunInfo,
    check_metric_name,
    damaged,
    eval_fields,
    eval_steps,
    find_runs,
    metric_lines,
    parse_record,
    read_eval,
    read_info,
    read_metrics,
    read_rollouts,
    run_state,
    step_files,
)
from grpo_cli.runlock import claim, is_held, release, utc_now
from grpo_cli.types import EvalRow, RunStatus, StepRecord

if TYPE_CHECKING:
    from filelock import FileLock

__all__ = [
    "RunDir",
    "RunInfo",
    "check_metric_name",
    "eval_steps",
    "find_runs",
    "is_held",
    "read_eval",
    "read_info",
    "read_metrics",
    "read_rollouts",
    "run_path",
    "run_state",
]

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


class RunDir:
    """A run folder that this process holds. Made by `RunDir.open`; closing frees the lock."""

    def __init__(self, path: Path, info: RunInfo, locks: Sequence[FileLock]) -> None:
        self.path = path
        self.info = info
        self._locks = locks

    @classmethod
    def open(
        cls,
        root: Path,
        *,
        recipe_name: str,
        name: str,
        seed: int,
        recipe: Recipe,
        origins: Mapping[str, str],
        sources: Mapping[str, str],
        command: Sequence[str],
        identity: Mapping[str, str],
        restart: bool = False,
    ) -> RunDir:
        """Create the folder of this recipe and seed, or reopen it for another attempt.

        `identity` holds hashes of what the run depends on besides its recipe, such as the base
        model and the verifier. A run that is done is reopened as it is: its attempt is not counted
        and its status stays. `restart` first moves the old folder to `...superseded-N`.

        Raises:
            GrpoError: GR202 when the folder cannot be used, GR203 when another process holds it,
                GR204 when its files are damaged, GR208 when it belongs to something else, GR209
                for a bad name, GR303 when it cannot be written.
        """
        path = run_path(root, recipe_name, name, seed, recipe)
        locks = [claim(root, path)]
        try:
            used = any((path / n).exists() for n in ("run.json", "metrics.jsonl", "checkpoints"))
            if restart and used:
                # The old lock stays held: whoever waits for it must not get the moved folder.
                _set_aside(path)
                locks.append(claim(root, path))
                used = False
            if used:
                info = read_info(path)
                _check_same(path, recipe, identity)
                if info.status is RunStatus.DONE:
                    return cls(path, info, locks)
                info = replace(
                    info,
                    step=_repair_metrics(path),
                    status=RunStatus.RUNNING,
                    attempt=info.attempt + 1,
                    ended=None,
                    reason=None,
                )
            else:
                info = RunInfo(
                    run_id=uuid.uuid4().hex,
                    recipe=recipe_name,
                    name=name,
                    seed=seed,
                    recipe_hash=recipe.hash,
                    status=RunStatus.RUNNING,
                    attempt=1,
                    step=-1,
                    started=utc_now(),
                    ended=None,
                    reason=None,
                )
            _write_json(path / "recipe.json", recipe.tree())
            _write_json(path / "origins.json", dict(origins))
            _write_json(path / "identity.json", dict(identity))
            _write_sources(path / "sources", sources)
            _write_env(path, info.attempt)
            with disk_errors(path / "cmd.txt"), open(path / "cmd.txt", "a") as file:
                file.write(shlex.join(command) + "\n")
            # Last: a folder without run.json is begun again from nothing.
            _write_json(path / "run.json", asdict(info))
        except BaseException:
            release(path, locks)
            raise
        return cls(path, info, locks)

    def append(self, record: StepRecord) -> None:
        """Put a step on record, durably. One record per step, in order; what is not finite is null.

        Raises:
            GrpoError: GR303 when it cannot be written; earlier records are intact.
            ValueError: for a metric name that MLflow would refuse.
        """
        assert record.step > self.info.step, f"step {record.step} after step {self.info.step}"
        for key in record.scalars:
            check_metric_name(key)
        data = json_line(asdict(record))
        path = self.path / "metrics.jsonl"
        crashpoint("append-begin")
        # Unbuffered, so that closing after a failure cannot write the line again.
        with disk_errors(path), open(path, "ab", buffering=0) as file:
            before = file.tell()
            try:
                if file.write(data) != len(data):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                crashpoint("append-written")
                os.fsync(file.fileno())
            except OSError:
                os.truncate(path, before)
                raise
            if before == 0:
                sync_dir(self.path)
        crashpoint("append-synced")
        self._update(step=record.step)

    def truncate_after(self, step: int) -> None:
        """Set aside all records, rollouts and evaluations above `step` (-1: all), on resume.

        They go to `superseded/attempt-N...`, where N is the attempt before this one.

        Raises:
            GrpoError: GR204 when the metrics are damaged, GR303 when they cannot be written.
        """
        metrics, aside = self.path / "metrics.jsonl", self.path / "superseded"
        label = f"attempt-{max(1, self.info.attempt - 1)}"
        kept, dropped = bytearray(), bytearray()
        for number, line in enumerate(metric_lines(metrics), start=1):
            (dropped if parse_record(metrics, number, line).step > step else kept).extend(line)
        if dropped:
            with disk_errors(aside):
                aside.mkdir(exist_ok=True)
            target = aside / f"{label}.metrics.jsonl"
            old = target.read_bytes() if target.exists() else b""
            # After a crash between these two writes the lines are already there.
            if not old.endswith(dropped):
                replace_file(target, old + dropped)
            replace_file(metrics, bytes(kept))
        for folder in ("rollouts", "eval"):
            for number, path in step_files(self.path / folder):
                if number > step:
                    with disk_errors(aside):
                        aside.mkdir(exist_ok=True)
                        os.replace(path, aside / f"{label}.{folder}.{path.name}")
        self._update(step=_repair_metrics(self.path))

    def write_rollouts(self, step: int, rows: Iterable[Mapping[str, object]]) -> Path:
        """Write `rollouts/step-000001.jsonl.gz`, the same bytes for the same rows.

        Raises:
            GrpoError: GR303.
        """
        buffer = io.BytesIO()
        with gzip.GzipFile(filename="", mode="wb", fileobj=buffer, mtime=0) as file:
            for row in rows:
                file.write(json_line(row))
        return self._write_step("rollouts", step, ".jsonl.gz", buffer.getvalue())

    def write_eval(self, step: int, rows: Iterable[EvalRow]) -> Path:
        """Write `eval/step-000000.jsonl`.

        Raises:
            GrpoError: GR303.
        """
        data = b"".join(json_line(eval_fields(row)) for row in rows)
        return self._write_step("eval", step, ".jsonl", data)

    def set_status(self, status: RunStatus, reason: str | None = None) -> None:
        """Say how the run ended, or that it runs again."""
        ended = None if status is RunStatus.RUNNING else utc_now()
        self._update(status=status, reason=reason, ended=ended)

    def check_complete(self, step: int) -> None:
        """Make sure that the records go up to `step`, as its checkpoint or its end says.

        Raises:
            GrpoError: GR204 when records are missing.
        """
        records = read_metrics(self.path)
        found = records[-1].step if records else None
        if found != step or records[0].step != 0:
            raise error(
                "GR204",
                f"{self.path / 'metrics.jsonl'} does not hold the records of steps 0 to {step}",
                hint="put the file back, or pass --restart to begin a new run",
            )

    def note_environment(self, facts: Mapping[str, str | int | None]) -> None:
        """Add to env.json what is known only once the model is loaded."""
        env = json.loads((self.path / "env.json").read_bytes())
        _write_json(self.path / "env.json", {**env, **facts})

    def discard(self) -> None:
        """Remove a folder in which nothing was done. It must have no record."""
        assert self.info.step < 0, self.path
        shutil.rmtree(self.path)
        for parent in (self.path.parent, self.path.parent.parent):
            with suppress(OSError):
                parent.rmdir()

    def close(self) -> None:
        """Free the lock; the folder can then be opened by another process."""
        release(self.path, self._locks)
        self._locks = ()

    def __enter__(self) -> RunDir:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _update(self, **changes: Any) -> None:
        self.info = replace(self.info, **changes)
        _write_json(self.path / "run.json", asdict(self.info))

    def _write_step(self, folder: str, step: int, suffix: str, data: bytes) -> Path:
        path = self.path / folder / f"step-{step:06d}{suffix}"
        with disk_errors(path):
            path.parent.mkdir(exist_ok=True)
        replace_file(path, data)
        return path


def run_path(root: Path, recipe_name: str, name: str, seed: int, recipe: Recipe) -> Path:
    """Where the run of this recipe and seed lives.

    Raises:
        GrpoError: GR209 when a name cannot be part of a path.
    """
    for part in (recipe_name, name):
        if not _NAME.fullmatch(part) or ".." in part or SUPERSEDED in part:
            raise error(
                "GR209",
                f"{part!r} cannot name a run",
                hint="use up to 64 letters, digits, '.', '_' and '-', the first a letter or digit",
            )
    assert seed >= 0, seed
    hash8 = hashlib.sha256(recipe.hash.encode()).hexdigest()[:8]
    return root / recipe_name / name / f"s{seed}-{hash8}"


def _set_aside(path: Path) -> None:
    number = 1
    while (target := path.with_name(f"{path.name}{SUPERSEDED}{number}")).exists():
        number += 1
    with disk_errors(target):
        os.rename(path, target)
        (target / "lock.json").unlink(missing_ok=True)
        sync_dir(path.parent)


def _repair_metrics(path: Path) -> int:
    """Cut off a last line that a crash left unfinished; the newest step on record, or -1."""
    metrics, step = path / "metrics.jsonl", -1
    whole = bytearray()
    for number, line in enumerate(metric_lines(metrics), start=1):
        step = parse_record(metrics, number, line).step
        whole += line
    if metrics.exists() and metrics.stat().st_size != len(whole):
        replace_file(metrics, bytes(whole))
    return step


def _check_same(path: Path, recipe: Recipe, identity: Mapping[str, str]) -> None:
    """GR208 unless the folder belongs to this recipe and these identity facts."""
    for file, now in (("recipe.json", recipe.tree()), ("identity.json", dict(identity))):
        try:
            then = json.loads((path / file).read_bytes())
        except (OSError, ValueError) as problem:
            raise damaged(path / file, "it cannot be read") from problem
        # `now` through JSON too, so that a tuple equals the list it was stored as.
        found = _differences(then, json.loads(json.dumps(now)))
        kept = (text for key, text in found if file != "recipe.json" or has_effect(key))
        if changed := sorted(kept):
            raise error(
                "GR208",
                f"{path} was made with other values of {', '.join(changed)}",
                hint="bring the old ones back to go on with it, give the run another --name, or "
                "pass --restart to begin it again (the old folder is kept)",
            )


def _differences(then: Any, now: Any, at: str = "") -> Iterator[tuple[str, str]]:
    """Dotted key and a readable line of every leaf that is not the same."""
    if isinstance(then, dict) and isinstance(now, dict):
        for key in then.keys() | now.keys():
            yield from _differences(then.get(key), now.get(key), f"{at}.{key}" if at else key)
    elif then != now:
        yield at, f"{at} ({json.dumps(then)}, now {json.dumps(now)})"


def _write_json(path: Path, value: object) -> None:
    replace_file(path, (json.dumps(value, indent=1) + "\n").encode())


def _write_sources(folder: Path, sources: Mapping[str, str]) -> None:
    """Each recipe file under a flat name made from its path."""
    with disk_errors(folder):
        folder.mkdir(exist_ok=True)
    for number, (source, text) in enumerate(sources.items(), start=1):
        flat = re.sub(r"[^A-Za-z0-9._-]+", "_", source).strip("._")[-100:]
        replace_file(folder / f"{number:02d}-{flat}", text.encode())


def _write_env(path: Path, attempt: int) -> None:
    """`env.json`; an older attempt's is kept in `superseded/` if it was not the same."""
    file, now = path / "env.json", (json.dumps(environment(), indent=1) + "\n").encode()
    if file.exists() and (old := file.read_bytes()) != now:
        with disk_errors(path):
            (path / "superseded").mkdir(exist_ok=True)
        replace_file(path / "superseded" / f"attempt-{attempt - 1}.env.json", old)
    replace_file(file, now)
