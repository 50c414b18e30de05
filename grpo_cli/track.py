"""The MLflow mirror: another process that replays the run folder into a tracker.

Training never imports mlflow and never waits for it. `start_mirror` starts
`python -m grpo_cli.track --follow RUN`, which sends each new step until the run has ended or its
process is gone; `sync` does the same once, for what a dead tracker missed. Must not import torch.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from urllib.parse import urlsplit

from filelock import FileLock, Timeout

from grpo_cli.errors import GrpoError, error
from grpo_cli.mlflow_run import MlflowRun, read_places, settings, shown_uri, sqlite_path
from grpo_cli.rundir import check_metric_name, is_held, read_info, read_metrics
from grpo_cli.types import RunStatus

__all__ = [
    "Mirror",
    "MirrorResult",
    "MirrorState",
    "SyncResult",
    "brief",
    "check_metric_name",
    "count",
    "default_uri",
    "serve_ui",
    "shown_uri",
    "start_follower",
    "start_mirror",
    "stop_file",
    "sync",
]

_POLL_S = 0.5
_TICK_S = 0.05
_MAX_BACKOFF_S = 60.0
_PATIENCE_S = 3.0
_LAST_TRY_S = "2"


@dataclass(frozen=True, slots=True)
class SyncResult:
    """Steps that the store has, of those on record; `new` of them by this call.

    Example:
        SyncResult(new=3, sent=200, total=200)
    """

    new: int
    sent: int
    total: int


@dataclass(frozen=True, slots=True)
class MirrorResult:
    """Steps that the store at `uri` has, of those on record, and the last error if there was one.

    Example:
        MirrorResult(uri="sqlite:////home/u/runs/mlflow.db", sent=200, total=200, error=None)
    """

    uri: str
    sent: int
    total: int
    error: str | None

    @property
    def summary(self) -> str:
        """One line for a person."""
        text = f"{self.sent} of {self.total} steps in {self.uri}"
        if self.error is not None:
            return f"{text}: {self.error}; `grpo runs sync` sends the rest"
        return text if self.sent == self.total else f"{text}, the rest is on its way"


@dataclass(slots=True)
class MirrorState:
    """What a mirror process last said about itself, in `logs/mirror.json`."""

    pid: int = 0
    local: bool = True
    """Busy on this machine (importing, making a database): silence says nothing of the tracker."""
    error: str | None = None

    def write(self, run: Path) -> None:
        """Say it, when it is something new."""
        path = run / "logs" / "mirror.json"
        text = json.dumps(asdict(self))
        if not path.exists() or path.read_text() != text:
            tmp = path.with_name(f".mirror-{self.pid}.tmp")
            tmp.write_text(text)
            os.replace(tmp, path)

    @classmethod
    def read(cls, run: Path, pid: int) -> MirrorState:
        """What the mirror with this process id said."""
        try:
            found = cls(**json.loads((run / "logs" / "mirror.json").read_bytes()))
        except (OSError, ValueError, TypeError):
            return cls()
        return found if found.pid == pid else cls()


def default_uri(runs_root: Path) -> str:
    """MLFLOW_TRACKING_URI, or the SQLite store of the runs folder."""
    uri = f"sqlite:///{runs_root.absolute() / 'mlflow.db'}"
    return os.environ.get("MLFLOW_TRACKING_URI") or uri


def sync(run: Path, uri: str) -> SyncResult:
    """Send everything of a run that the store does not have yet.

    Raises:
        GrpoError: GR203 when another process is sending this run, GR207 when the tracker cannot be
            reached or refuses, GR204 or GR206 when the folder cannot be read.
    """
    before, _ = count(run, uri)
    lock = FileLock(run / "mlflow.lock", thread_local=False)
    try:
        lock.acquire(timeout=0)
    except Timeout as problem:
        raise error(
            "GR203",
            f"{run} is being sent to MLflow by another process",
            hint="its mirror ends soon after the run does",
        ) from problem
    try:
        with settings():
            MlflowRun(run, uri).send()
    except GrpoError:
        raise
    except Exception as problem:
        raise error(
            "GR207",
            f"the tracker {shown_uri(uri)} cannot be used: {brief(problem, uri)}",
            hint="check --tracking-uri or MLFLOW_TRACKING_URI; the run folder has everything, so "
            "`grpo runs sync` can send it later",
        ) from problem
    finally:
        lock.release()
    sent, total = count(run, uri)
    return SyncResult(max(0, sent - before), sent, total)


def count(run: Path, uri: str) -> tuple[int, int]:
    """Steps that the store has, and steps on record."""
    place = read_places(run, read_info(run).run_id).get(shown_uri(uri), {})
    records = read_metrics(run)
    return sum(r.step <= place.get("last_step", -1) for r in records), len(records)


class Mirror:
    """The trainer's handle on its mirror process. No method raises."""

    def __init__(
        self, run: Path, uri: str, process: subprocess.Popen[bytes] | None, problem: str | None
    ) -> None:
        self._run = run
        self._uri = uri
        self._process = process
        self._problem = problem

    def finish(self, timeout_s: float = 15.0) -> MirrorResult:
        """Have the mirror send the rest, and wait for it while it makes progress.

        Call it after the run's status is set. It takes at most `timeout_s`, and at most about 3 s
        without a sign of progress. A mirror that still makes progress then is left to end by
        itself; one that does not is ended, and `sync` can send the rest another day.
        """
        if self._process is not None:
            try:
                self._wait(self._process, timeout_s)
            except OSError as problem:
                self._problem = str(problem)
        try:
            sent, total = self.counts(self._run, self._uri)
        except (GrpoError, OSError) as problem:
            return MirrorResult(shown_uri(self._uri), 0, 0, self._problem or str(problem))
        return MirrorResult(shown_uri(self._uri), sent, total, self._problem)

    def counts(self, run: Path, uri: str) -> tuple[int, int]:
        """Steps that the store has, and steps on record."""
        return count(run, uri)

    def sign(self, run: Path) -> int:
        """Changes with every call that the store acknowledged."""
        path = run / "mlflow.json"
        return path.stat().st_mtime_ns if path.exists() else 0

    def _wait(self, process: subprocess.Popen[bytes], timeout_s: float) -> None:
        stop = stop_file(self._run, process.pid)
        stop.touch()
        deadline = time.monotonic() + timeout_s
        sign, since = self.sign(self._run), time.monotonic()
        while process.poll() is None and time.monotonic() < deadline:
            time.sleep(_TICK_S)
            if MirrorState.read(self._run, process.pid).local or self.sign(self._run) != sign:
                sign, since = self.sign(self._run), time.monotonic()
            elif time.monotonic() - since > _PATIENCE_S:
                process.kill()
                process.wait()
                self._problem = "the tracker does not answer"
        problem = MirrorState.read(self._run, process.pid).error
        if process.poll() is None:
            if problem is None:
                return
            process.kill()
            process.wait()
        stop.unlink(missing_ok=True)
        if process.returncode:
            self._problem = problem or self._problem or f"it ended with code {process.returncode}"


def start_mirror(run: Path, uri: str) -> Mirror:
    """Start the process that mirrors a run that this process holds. Never raises."""
    return Mirror(run, uri, *start_follower("grpo_cli.track", run, uri))


def start_follower(
    module: str, folder: Path, uri: str
) -> tuple[subprocess.Popen[bytes] | None, str | None]:
    """Start `python -m MODULE --follow FOLDER`; the process, or why there is none. Never raises."""
    # The URI may hold a password, so it goes through the environment and not the command line.
    env = {**os.environ, "MLFLOW_TRACKING_URI": uri, "OMP_NUM_THREADS": "1"}
    try:
        (folder / "logs").mkdir(exist_ok=True)
        with open(folder / "logs" / "mirror.log", "ab") as log:
            process = subprocess.Popen(
                # -P: a file of the current folder must not stand in for a module.
                [sys.executable, "-P", "-m", module, "--follow", str(folder.absolute())],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=env,
                # Ctrl-C is for the trainer; the mirror then sends the last steps.
                start_new_session=True,
            )
    except OSError as problem:
        return None, f"the mirror did not start: {problem}"
    return process, None


def serve_ui(runs_root: Path, uri: str | None, port: int) -> int:
    """Serve MLflow's own pages for a database on loopback, until interrupted; the exit code.

    Raises:
        GrpoError: GR207 when there is nothing to serve here.
    """
    address = uri or default_uri(runs_root)
    path = sqlite_path(address)
    if address == "none" or address.startswith(("http://", "https://", "databricks")):
        raise error(
            "GR207",
            f"the tracker is {shown_uri(address)}, which is no database of this machine",
            hint="open its own pages, or name a database with --tracking-uri",
        )
    if path is not None and not path.exists():
        raise error(
            "GR207",
            f"no MLflow store at {path}",
            hint="`grpo train` and `grpo runs sync` make one",
        )
    # The address may hold a password, so it goes through the environment.
    env = {
        **os.environ,
        "MLFLOW_BACKEND_STORE_URI": address,
        "MLFLOW_TRACKING_URI": address,
        "MLFLOW_DISABLE_TELEMETRY": "true",
    }
    command = [sys.executable, "-P", "-m", "mlflow", "ui", "--host", "127.0.0.1"]
    try:
        done = subprocess.run(
            [*command, "--port", str(port), "--workers", "1"], env=env, check=False
        )
    except KeyboardInterrupt:
        return 130
    return 0 if done.returncode in (0, -2, 130) else 3


def follow(run: Path, uri: str) -> int:
    """Send steps as they come until the run is over; the exit code of the mirror process."""
    progress = MirrorState(pid=os.getpid())
    progress.write(run)
    run_id = read_info(run).run_id
    stop = stop_file(run, progress.pid)

    def is_over() -> bool:
        if stop.exists() or not is_held(run):
            return True
        return read_info(run).status is not RunStatus.RUNNING

    lock = FileLock(run / "mlflow.lock", thread_local=False)
    try:
        # The mirror of an earlier attempt may still be sending.
        while not _try(lock):
            if stop.exists():
                return 0
            time.sleep(_POLL_S)
        return _follow(run, uri, run_id, progress, is_over)
    finally:
        stop.unlink(missing_ok=True)
        lock.release()


def _follow(
    run: Path, uri: str, run_id: str, progress: MirrorState, is_over: Callable[[], bool]
) -> int:
    with settings():
        # Before `local` ends: on a busy machine this alone takes seconds.
        import mlflow.tracking  # noqa: F401
    target: MlflowRun | None = None
    failures = 0
    while True:
        over = is_over()
        if read_info(run).run_id != run_id:
            # The folder was begun again and has a mirror of its own.
            return 0
        limits = {"MLFLOW_HTTP_REQUEST_TIMEOUT": _LAST_TRY_S} if over and failures else {}
        try:
            with settings(**limits):
                if target is None:
                    progress.local = sqlite_path(uri) is not None
                    progress.write(run)
                    target = MlflowRun(run, uri)
                    progress.local = False
                target.send()
            progress.error, failures = None, 0
        except Exception as problem:
            # Whatever the tracker does, the run folder has everything; say so and try again.
            target, failures = None, failures + 1
            progress.local, progress.error = False, brief(problem, uri)
            sys.stderr.write(f"{type(problem).__name__}: {progress.error}\n")
            if isinstance(problem, GrpoError) or over:
                progress.write(run)
                return 1
        progress.write(run)
        if over:
            return 0
        wait = min(_MAX_BACKOFF_S, 2.0**failures) if failures else _POLL_S
        deadline = time.monotonic() + wait
        while time.monotonic() < deadline and not is_over():
            time.sleep(_POLL_S / 2)


def _try(lock: FileLock) -> bool:
    try:
        lock.acquire(timeout=0)
    except Timeout:
        return False
    return True


def stop_file(run: Path, pid: int) -> Path:
    """The file whose appearance asks a mirror process to send the rest and end."""
    return run / "logs" / f"mirror-{pid}.stop"


def brief(problem: Exception, uri: str) -> str:
    """The first line of an error, cut, without the URI's user and password."""
    user = urlsplit(uri).netloc.rpartition("@")[0]
    text = str(problem).replace(f"{user}@", "") if user else str(problem)
    line = (text.strip() or type(problem).__name__).splitlines()[0]
    return line if len(line) <= 160 else f"{line[:157]}..."


def main(args: Sequence[str]) -> int:
    """Entry point of the mirror process. The URI comes in MLFLOW_TRACKING_URI."""
    parser = argparse.ArgumentParser(prog="python -m grpo_cli.track")
    parser.add_argument("--follow", type=Path, required=True, metavar="RUN")
    parser.add_argument("--uri", help="default: MLFLOW_TRACKING_URI")
    options = parser.parse_args(args)
    run: Path = options.follow
    os.nice(10)
    return follow(run, options.uri or default_uri(run.parents[2]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
