"""The ablation's MLflow mirror: `python -m grpo_cli.ablate.mirror`, one process for all cells.

It makes the store, the parent run and the children, and replays every cell's run folder. Training
never waits for it and does not notice when it dies; `grpo runs sync` sends what is missing.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from filelock import FileLock, Timeout

from grpo_cli.ablate.plan import Outline
from grpo_cli.ablate.store import read_outline
from grpo_cli.errors import GrpoError, error
from grpo_cli.mlflow_ablation import finish_parent, parent_run, send_plan
from grpo_cli.mlflow_run import (
    MlflowRun,
    connect,
    ensure_experiment,
    settings,
    shown_uri,
    sqlite_path,
)
from grpo_cli.rundir import is_held, read_info
from grpo_cli.track import Mirror, MirrorState, brief, count, start_follower, stop_file
from grpo_cli.types import RunStatus

_POLL_S = 1.0
_MAX_BACKOFF_S = 60.0


class AblationMirror(Mirror):
    """The handle on the mirror process of an ablation. No method raises."""

    def counts(self, run: Path, uri: str) -> tuple[int, int]:
        """Steps of all cells that the store has, and that are on record."""
        found = [count(path.parent, uri) for path in run.glob("*/s*-*/run.json")]
        return sum(sent for sent, _ in found), sum(total for _, total in found)

    def sign(self, run: Path) -> int:
        """Changes with every call that the store acknowledged."""
        files = [run / "mlflow.json", *run.glob("*/s*-*/mlflow.json")]
        return max((file.stat().st_mtime_ns for file in files if file.exists()), default=0)


def start_mirror(folder: Path, uri: str) -> AblationMirror:
    """Start the process that mirrors an ablation that this process holds. Never raises."""
    return AblationMirror(folder, uri, *start_follower("grpo_cli.ablate.mirror", folder, uri))


def follow(folder: Path, uri: str) -> int:
    """Send the cells' steps as they come until the ablation is over; the exit code."""
    state = MirrorState(pid=os.getpid())
    state.write(folder)
    stop = stop_file(folder, state.pid)
    try:
        with settings():
            # Before `local` ends: on a busy machine this alone takes seconds.
            import mlflow.tracking  # noqa: F401
        return _follow(folder, uri, state, lambda: stop.exists() or not is_held(folder))
    finally:
        stop.unlink(missing_ok=True)


def _follow(folder: Path, uri: str, state: MirrorState, is_over: Callable[[], bool]) -> int:
    targets: dict[str, MlflowRun] = {}
    failures = 0
    while True:
        over = is_over()
        limits = {"MLFLOW_HTTP_REQUEST_TIMEOUT": "2"} if over and failures else {}
        try:
            with settings(**limits):
                send(folder, uri, targets, over, state)
            state.error, failures = None, 0
        except Exception as problem:
            # Whatever the tracker does, the run folders have everything; say so and try again.
            targets.clear()
            failures += 1
            state.local, state.error = False, brief(problem, uri)
            sys.stderr.write(f"{type(problem).__name__}: {state.error}\n")
            if isinstance(problem, GrpoError) or over:
                state.write(folder)
                return 1
        state.write(folder)
        if over:
            return 0
        wait = min(_MAX_BACKOFF_S, 2.0**failures) if failures else _POLL_S
        deadline = time.monotonic() + wait
        while time.monotonic() < deadline and not is_over():
            time.sleep(_POLL_S / 4)


def send(
    folder: Path, uri: str, targets: dict[str, MlflowRun], over: bool, state: MirrorState
) -> None:
    """One pass over the parent and all cells; `over` also says how the ablation ended."""
    outline = read_outline(folder)
    state.local = sqlite_path(uri) is not None
    if state.pid:
        state.write(folder)
    client = connect(uri)
    store = shown_uri(uri)
    experiment = ensure_experiment(client, f"grpo/{folder.name}", uri, folder.parents[1])
    parent = parent_run(folder, client, experiment, store)
    send_plan(folder, client, parent, store)
    if not targets:
        client.update_run(parent, status="RUNNING")  # it may have ended before it was taken up
    state.local = False
    for cell in outline.cells:
        run = folder / cell.run
        if not (run / "run.json").is_file():
            continue
        lock = FileLock(run / "mlflow.lock", thread_local=False)
        try:
            lock.acquire(timeout=0)
        except Timeout:
            continue  # a `grpo runs sync` is sending it
        try:
            key = f"{cell.run} {read_info(run).run_id}"
            if key not in targets:
                targets[key] = MlflowRun(run, uri)
            targets[key].send()
        finally:
            lock.release()
    if over:
        finish_parent(folder, client, parent, _end(folder, outline))


def sync_parent(folder: Path, uri: str) -> None:
    """Send an ablation whole, once: plan, cells, comparison.

    Raises:
        GrpoError: GR207 when the tracker cannot be reached or refuses.
    """
    try:
        with settings():
            send(folder, uri, {}, not is_held(folder), MirrorState())
    except GrpoError:
        raise
    except Exception as problem:
        # Whatever a tracker raises, a person sees one line.
        raise error(
            "GR207",
            f"the tracker {shown_uri(uri)} cannot be used: {brief(problem, uri)}",
            hint="`grpo runs sync` can send it later",
        ) from problem


def _end(folder: Path, outline: Outline) -> str:
    """How MLflow calls the end of an ablation of these cells."""
    found = set()
    for cell in outline.cells:
        with suppress(GrpoError):
            found.add(read_info(folder / cell.run).status)
    if found == {RunStatus.DONE}:
        return "FINISHED"
    return "FAILED" if RunStatus.FAILED in found else "KILLED"


def main(args: Sequence[str]) -> int:
    """Entry point. The URI comes in MLFLOW_TRACKING_URI, because it may hold a password."""
    parser = argparse.ArgumentParser(prog="python -m grpo_cli.ablate.mirror")
    parser.add_argument("--follow", type=Path, required=True, metavar="FOLDER")
    options = parser.parse_args(args)
    os.nice(10)
    return follow(options.follow, os.environ["MLFLOW_TRACKING_URI"])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
