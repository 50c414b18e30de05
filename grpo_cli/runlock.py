"""Who holds a run folder. The kernel frees the lock of a killed process, so none is ever stale.

`lock` is the file that is locked; `lock.json` beside it says by whom, for the error of a second
process. Must not import torch.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from filelock import FileLock, Timeout

from grpo_cli.errors import GrpoError, error

# Long enough to ride over a reader that asks for an instant whether the lock is held.
_LOCK_PATIENCE_S = 0.3


def claim(root: Path, path: Path) -> FileLock:
    """Make the folder and take its lock.

    Raises:
        GrpoError: GR202 when the folder cannot be written or is a link, GR203 when another process
            holds it.
    """
    for part in (path.parent.parent, path.parent, path):
        if part.is_symlink():
            raise error("GR202", f"{part} is a symbolic link, which a run folder may not be")
    who = {"pid": os.getpid(), "host": socket.gethostname(), "since": utc_now()}
    lock = FileLock(path / "lock", thread_local=False)
    try:
        path.mkdir(parents=True, exist_ok=True)
        # Opened here first, because FileLock takes a refusal for a lock that is held.
        os.close(os.open(path / "lock", os.O_RDWR | os.O_CREAT, 0o644))
        lock.acquire(timeout=_LOCK_PATIENCE_S)
        (path / "lock.json").write_text(json.dumps(who))
    except Timeout as problem:
        raise _in_use(path) from problem
    except OSError as problem:
        lock.release()
        raise error(
            "GR202",
            f"the runs folder {root} cannot be used: {problem.strerror or problem}",
            hint="name a folder that you may write to with --runs-dir or GRPO_RUNS_DIR",
        ) from problem
    return lock


def _in_use(path: Path) -> GrpoError:
    try:
        who = json.loads((path / "lock.json").read_bytes())
        holder = f"process {who['pid']} on {who['host']}, since {who['since']}"
    except (OSError, ValueError, KeyError, TypeError):
        holder = "another process"
    return error(
        "GR203",
        f"{path} is in use by {holder}",
        hint="wait for it or stop it; another seed or name gets a folder of its own",
    )


def release(path: Path, locks: Sequence[FileLock]) -> None:
    """Free the folder for the next process."""
    if locks:
        with suppress(OSError):
            (path / "lock.json").unlink(missing_ok=True)
    for lock in locks:
        lock.release()


def is_held(run: Path) -> bool:
    """Whether a process holds the run. Asks the kernel, so a killed holder counts as gone."""
    try:
        fd = os.open(run / "lock", os.O_RDONLY)
    except OSError:
        return False
    try:
        # Shared, so that readers do not take each other for the holder.
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def utc_now() -> str:
    """The time of day as run files write it."""
    return datetime.now(UTC).isoformat(timespec="seconds")
