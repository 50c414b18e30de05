"""The command line that starts the launcher at a level: what it sees, who it is, what it may use.

Nothing here runs anything. Standard library only.
"""

from __future__ import annotations

import functools
import json
import os
import resource
import secrets
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

from grpo_cli.verify.sandbox_child import Limits

_HERE = Path(__file__).resolve().parent
_LAUNCHER, _CONFINER = str(_HERE / "sandbox_launch.py"), str(_HERE / "sandbox_confine.py")
# Not -I: it would ignore PYTHONHASHSEED, which makes the order of sets the same in every run. With
# no other Python variable set, -P -s is the rest of -I. -S: no site-packages.
_PYTHON_OPTIONS = ("-P", "-s", "-S", "-B", "-X", "utf8")
_LIBRARY_DIRS = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/nix/store")
_DEVICES = ("/dev/null", "/dev/urandom")
# Without the second, each thread would reserve up to 128 MB of address space for its heap.
ENVIRONMENT = {"PYTHONHASHSEED": "0", "MALLOC_ARENA_MAX": "1"}
"""All that a candidate's environment holds (bubblewrap adds PWD)."""


def command_for(level: str, limits: Limits) -> Callable[[int, int, int], list[str]]:
    """The command of one run, once the fds of the job, the result pipe and the filter are known."""
    uid = _own_uid() if level != "none" else None
    rlimits = _rlimits(limits, private_count=uid is not None or level == "bubblewrap")
    python = [sys._base_executable, *_PYTHON_OPTIONS]  # type: ignore[attr-defined]

    def command(job_fd: int, result_fd: int, filter_fd: int) -> list[str]:
        # At landlock the confiner changes the user, before it closes the doors.
        launcher_uid = uid if level == "bubblewrap" else None
        setup = json.dumps(
            {
                "job": job_fd,
                "result": result_fd,
                "uid": launcher_uid,
                "tie": level == "none",
                "rlimits": rlimits,
            }
        )
        if level == "bubblewrap":
            return [*_bwrap(filter_fd, uid), *python, _LAUNCHER, setup]
        if level == "landlock":
            return [*python, _CONFINER, _confinement(filter_fd, uid), setup]
        return [*python, _LAUNCHER, setup]

    return command


def _confinement(filter_fd: int, uid: int | None) -> str:
    """The confiner's own argument."""
    dirs, hidden, files = _visible()
    options = {
        "launcher": _LAUNCHER,
        "filter": filter_fd,
        "parent": os.getpid(),
        "uid": uid,
        "keep_read": uid is not None and not _others_can_enter(Path(sys.base_prefix) / "lib"),
        # A rule is for the folder itself, by whatever name (/lib is often /usr/lib).
        "dirs": list(dict.fromkeys(map(os.path.realpath, dirs))),
        "hidden": list(dict.fromkeys(map(os.path.realpath, hidden))),
        "files": files,
    }
    return json.dumps(options)


def _bwrap(filter_fd: int, uid: int | None) -> list[str]:
    """bubblewrap with every namespace, and a root that holds only what Python needs."""
    program = shutil.which("bwrap")
    assert program is not None, "why_not has looked"
    command = [program, "--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts"]
    command += ["--unshare-cgroup-try", "--die-with-parent", "--new-session", "--cap-drop", "ALL"]
    if uid is None:
        command.append("--unshare-user")
    else:
        # Root stays root in a user namespace of its own, where limits on processes do not bind; so
        # none is made, and the launcher becomes a user that owns nothing, which ends these two.
        command += ["--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
    dirs, hidden, files = _visible()
    visible = [*dirs, *files, _LAUNCHER]
    # Folders on the way, made here so that the other user may enter them (by itself: 0700).
    inside = [*visible, *_DEVICES]
    parents = {str(parent) for path in inside for parent in Path(path).parents} - {"/", *dirs}
    for parent in sorted(parents):
        command += ["--perms", "0755", "--dir", parent]
    for path in visible:
        command += ["--ro-bind", path, path]
    for path in hidden:
        command += ["--tmpfs", path, "--remount-ro", path]
    for device in _DEVICES:
        command += ["--dev-bind", device, device]
    command += ["--remount-ro", "/", "--chdir", "/", "--seccomp", str(filter_fd), "--"]
    return command


@functools.cache
def _visible() -> tuple[list[str], list[str], list[str]]:
    """(folders, folders in them to hide, files) for a program: the interpreter and its libraries.

    Installed packages are hidden: this one, when installed, ships cases with their answers.
    """
    base = Path(sys.base_prefix)
    wanted = [base / "lib", base / "lib64", *map(Path, _LIBRARY_DIRS)]
    dirs = list(dict.fromkeys(path for path in wanted if path.is_dir()))
    hidden = [
        str(path)
        for folder in dirs
        for kind in ("site-packages", "dist-packages")
        for path in sorted(folder.glob(f"python*/{kind}"))
    ]
    executable = sys._base_executable  # type: ignore[attr-defined]
    files = dict.fromkeys([executable, os.path.realpath(executable), "/etc/ld.so.cache"])
    return list(map(str, dirs)), hidden, [path for path in files if os.path.isfile(path)]


def _rlimits(limits: Limits, *, private_count: bool) -> list[tuple[int, int, int]]:
    """[resource, soft, hard] for the child; a hard limit can only be lowered.

    `private_count` says that the run has a user (or user namespace) of its own, so that a limit on
    its threads does not count what others run.
    """
    cpu_s, memory = limits.kernel_cpu_s, limits.memory_mb << 20
    wanted = [
        (resource.RLIMIT_CPU, cpu_s, cpu_s + 1),
        (resource.RLIMIT_AS, memory, memory),
        (resource.RLIMIT_FSIZE, 1 << 20, 1 << 20),
        (resource.RLIMIT_NOFILE, 64, 64),
        (resource.RLIMIT_CORE, 0, 0),
        (resource.RLIMIT_STACK, 64 << 20, 64 << 20),
    ]
    if private_count:
        wanted.append((resource.RLIMIT_NPROC, limits.threads, limits.threads))
    # Else a neighbour could use it up; seccomp allows no second process, and memory bounds threads.
    rlimits = []
    for number, soft, hard in wanted:
        most = resource.getrlimit(number)[1]
        if most != resource.RLIM_INFINITY:
            soft, hard = min(soft, most), min(hard, most)
        rlimits.append((number, soft, hard))
    return rlimits


def _own_uid() -> int | None:
    """When root: a user id for this run that no account and no other run has. Else None.

    Limits on processes count per user, also across sandboxes, so runs must not share one.
    """
    if os.geteuid() != 0:
        return None
    uid = 1_900_000_000 + secrets.randbelow(200_000_000)
    for line in Path("/proc/self/uid_map").read_text().splitlines():
        inside, _, count = map(int, line.split())
        if inside <= uid < inside + count:
            return uid
        if count > 65536:  # a container with a smaller range: stay in its upper half
            return inside + count // 2 + uid % (count // 2 - 1)
    return None


def _others_can_enter(path: Path) -> bool:
    return all(step.stat().st_mode & 0o001 for step in (path, *path.parents))
