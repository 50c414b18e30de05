"""Writes that survive a crash: atomic files and checkpoint folders. Must not import torch.

A checkpoint is `checkpoints/step-000010/`: what the trainer wrote, `state.json`, and
`manifest.json` with the size and SHA-256 of every file. It is built under another name, synced and
renamed, so a folder that is called `step-*` was whole when it appeared; the manifest finds what
broke it later.
"""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import re
import shutil
import signal
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from grpo_cli.errors import GrpoError, error

JSON: TypeAlias = "bool | int | float | str | Sequence[JSON] | Mapping[str, JSON] | None"

CRASHPOINTS = (
    "append-begin",
    "append-written",
    "append-synced",
    "file-written",
    "file-replaced",
    "save-begin",
    "save-written",
    "save-state",
    "save-synced",
    "save-manifest",
    "save-aside",
    "save-renamed",
    "save-committed",
    "save-linked",
    "save-prune",
    "save-done",
)
"""Every name that `crashpoint` is called with."""

_STEP = re.compile(r"step-(\d{6,})")
_ASIDE = ".old-"
_hits: Counter[str] = Counter()


def crashpoint(name: str) -> None:
    """Die as by `kill -9` if GRPO_CRASH_AT is `name`, or `name:K` at the K-th call. For tests."""
    assert name in CRASHPOINTS, name
    point, _, count = os.environ.get("GRPO_CRASH_AT", "").partition(":")
    if point == name:
        _hits[name] += 1
        if _hits[name] == int(count or 1):
            os.kill(os.getpid(), signal.SIGKILL)


@contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Turn an `OSError` while writing `path` into GR303 (exit 3) with what to do."""
    try:
        yield
    except OSError as problem:
        raise _cannot_write(path, problem.errno, problem.strerror or str(problem)) from problem


def _cannot_write(path: Path, number: int | None, reason: str) -> GrpoError:
    if number in (errno.ENOSPC, errno.EDQUOT):
        cure = f"free some space on the disk of {path.parent}"
    elif number in (errno.EROFS, errno.EACCES, errno.EPERM):
        cure = f"make {path.parent} writable"
    else:
        cure = f"check the disk of {path.parent}"
    return error(
        "GR303",
        f"could not write {path}: {reason}",
        hint=f"{cure}, then run the same command again: it goes on from the last checkpoint",
        exit_code=3,
    )


def sync_dir(folder: Path) -> None:
    """Make the names in a folder durable."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def replace_file(path: Path, data: bytes) -> None:
    """Write a file so that a reader, and a crash at any instant, sees the old one or the new one.

    Raises:
        GrpoError: GR303 when the disk is full or fails; the old file is intact.
    """
    tmp = path.with_name(f".{path.name}.tmp")
    with disk_errors(path):
        try:
            with open(tmp, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            crashpoint("file-written")
            os.replace(tmp, path)
        except OSError:
            with suppress(OSError):
                tmp.unlink(missing_ok=True)
            raise
        crashpoint("file-replaced")
        sync_dir(path.parent)


def json_line(value: object) -> bytes:
    """One line of JSON, which knows no NaN or infinity: they become null."""
    try:
        text = json.dumps(value, allow_nan=False)
    except ValueError:
        text = json.dumps(_finite(value), allow_nan=False)
    return text.encode() + b"\n"


def _finite(value: object) -> object:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint whose files are those of its manifest."""

    step: int
    path: Path
    state: dict[str, Any]


def save(
    run: Path,
    step: int,
    write: Callable[[Path], None],
    state: Mapping[str, JSON],
    keep: int,
) -> Path:
    """Make the checkpoint of `step` from what `write` puts in a folder; keep the newest `keep`.

    Points the run's `adapter` link at the checkpoint's `adapter/` if it has one. A checkpoint of
    the same step is replaced. Only the process that holds the run's lock may call this.

    Raises:
        GrpoError: GR303 when the disk is full or fails; older checkpoints are intact.
        ValueError: when `state` is not JSON (NaN included).
    """
    assert step >= 0, step
    assert keep >= 1, keep
    root = run / "checkpoints"
    final = root / f"step-{step:06d}"
    tmp = root / f".tmp-{final.name}"
    with disk_errors(final):
        root.mkdir(exist_ok=True)
        _sweep(root)
        tmp.mkdir()
        crashpoint("save-begin")
        try:
            _fill(tmp, step, write, state)
        except BaseException as problem:
            # Tensor writers hide the errno, so ask the disk itself while the part file is there.
            full = isinstance(problem, Exception) and shutil.disk_usage(root).free < 2**16
            shutil.rmtree(tmp, ignore_errors=True)
            if full and not isinstance(problem, OSError):
                raise _cannot_write(final, errno.ENOSPC, "the disk is full") from problem
            raise
        if final.exists():
            os.rename(final, root / f"{_ASIDE}{final.name}")
            crashpoint("save-aside")
        os.rename(tmp, final)
        crashpoint("save-renamed")
        sync_dir(root)
        crashpoint("save-committed")
        _link_adapter(run, final)
        crashpoint("save-linked")
        _sweep(root)
        _prune(root, keep, final)
        crashpoint("save-done")
    return final


def _fill(tmp: Path, step: int, write: Callable[[Path], None], state: Mapping[str, JSON]) -> None:
    write(tmp)
    crashpoint("save-written")
    (tmp / "state.json").write_text(json.dumps(state, allow_nan=False, indent=1))
    crashpoint("save-state")
    names = _files(tmp)
    for name in names:
        with open(tmp / name, "rb") as file:
            os.fsync(file.fileno())
    crashpoint("save-synced")
    entries: list[Mapping[str, JSON]] = [
        {"name": n, "size": (tmp / n).stat().st_size, "sha256": _sha256(tmp / n)} for n in names
    ]
    with open(tmp / "manifest.json", "wb") as file:
        file.write(_manifest_bytes(step, entries))
        file.flush()
        os.fsync(file.fileno())
    for folder in (*(p for p in tmp.rglob("*") if p.is_dir()), tmp):
        sync_dir(folder)
    crashpoint("save-manifest")


def latest(run: Path) -> Checkpoint | None:
    """The newest checkpoint, verified; None when there is none. Changes nothing on disk.

    Raises:
        GrpoError: GR204 when the newest checkpoint is damaged, naming the file.
    """
    found = _checkpoints(run / "checkpoints")
    if not found:
        return None
    step, path = found[-1]
    damage = _damage(path, step)
    if damage is None:
        return Checkpoint(step, path, json.loads((path / "state.json").read_text()))
    older = next((s for s, p in reversed(found[:-1]) if _damage(p, s) is None), None)
    back = "begin again from step 0" if older is None else f"go on from step {older}"
    between = [str(p) for s, p in found if older is None or s > older]
    raise error(
        "GR204",
        f"the checkpoint of step {step} is damaged: {damage}",
        hint=f"delete {' and '.join(between)} to {back}, or pass --restart to begin a new run",
    )


def _checkpoints(root: Path) -> list[tuple[int, Path]]:
    """Step and path of every checkpoint, oldest first."""
    found: dict[int, Path] = {}
    for path in sorted(root.iterdir()) if root.is_dir() else []:
        # One that was put aside counts only while its replacement has not arrived. Its name
        # sorts first, so the replacement overwrites it here.
        if match := _STEP.fullmatch(path.name.removeprefix(_ASIDE)):
            found[int(match[1])] = path
    return sorted(found.items())


def _damage(folder: Path, step: int) -> str | None:
    """What is wrong with a checkpoint folder, or None."""
    manifest = folder / "manifest.json"
    try:
        raw = manifest.read_bytes()
        entries = json.loads(raw)["files"]
        # Re-writing it finds a change anywhere in the manifest itself.
        if raw != _manifest_bytes(step, entries):
            return f"{manifest} was changed"
        expected = {e["name"]: (e["size"], e["sha256"]) for e in entries}
    except FileNotFoundError:
        return f"{manifest} is missing"
    except (ValueError, KeyError, TypeError):
        return f"{manifest} cannot be read"
    present = set(_files(folder)) - {"manifest.json"}
    for name in sorted(present | set(expected) | {"state.json"}):
        path = folder / name
        if name not in present:
            return f"{path} is missing"
        if name not in expected:
            return f"{path} does not belong to it"
        if path.is_symlink():
            return f"{path} is a link"
        if path.stat().st_size != expected[name][0]:
            return f"{path} has {path.stat().st_size} bytes, not {expected[name][0]}"
        if _sha256(path) != expected[name][1]:
            return f"{path} does not match its checksum"
    return None


def _manifest_bytes(step: int, entries: Sequence[Mapping[str, JSON]]) -> bytes:
    body = {"version": 1, "step": step, "files": entries}
    digest = hashlib.sha256(json.dumps(body).encode()).hexdigest()
    return json.dumps({**body, "digest": digest}, indent=1).encode()


def _files(folder: Path) -> list[str]:
    """Names of everything in a folder that is not a folder, relative and sorted."""
    return sorted(
        p.relative_to(folder).as_posix()
        for p in folder.rglob("*")
        if p.is_symlink() or not p.is_dir()
    )


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sweep(root: Path) -> None:
    """Remove what a crash left behind; bring back a checkpoint whose replacement never came."""
    for path in root.glob(".tmp-*"):
        shutil.rmtree(path)
    for path in root.glob(f"{_ASIDE}step-*"):
        final = root / path.name.removeprefix(_ASIDE)
        if final.exists():
            _remove(path)
        else:
            os.rename(path, final)


def _prune(root: Path, keep: int, saved: Path) -> None:
    for _, path in _checkpoints(root)[:-keep]:
        if path != saved:
            _remove(path)


def _remove(path: Path) -> None:
    """Delete a folder; a crash half-way must not leave it looking like a damaged checkpoint."""
    doomed = path.with_name(f".tmp-delete-{path.name}")
    os.rename(path, doomed)
    crashpoint("save-prune")
    shutil.rmtree(doomed)


def _link_adapter(run: Path, checkpoint: Path) -> None:
    if not (checkpoint / "adapter").is_dir():
        return
    link, tmp = run / "adapter", run / ".adapter.tmp"
    tmp.unlink(missing_ok=True)
    tmp.symlink_to(Path("checkpoints", checkpoint.name, "adapter"))
    os.replace(tmp, link)
    sync_dir(run)
