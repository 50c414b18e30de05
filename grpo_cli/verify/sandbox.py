"""Runs programs that a model wrote, as far from this machine as the machine allows.

Three levels, strongest first; `available_level` tries them once and takes the first that works:

- `bubblewrap`: own mount, PID, network, IPC, UTS and cgroup namespaces; nothing of the file system
  but the interpreter and the system libraries, read-only; plus everything below.
- `landlock`: the file system is closed by landlock, system calls by seccomp; no namespaces.
- `none`: limits only. Never chosen by itself: a person must ask for it (`--unsafe-no-sandbox`).

At both real levels the program has another user id (its own user namespace when started by a plain
user and bubblewrap), no capability, an environment without the caller's variables, no network, no
second process (threads are allowed), nothing it can write to, and limits on memory, processor time
and output. It therefore cannot leave a process behind or sum up memory over processes.

The protocol matters as much as the jail: expected values stay in the parent, which compares JSON
values of strict type. See `sandbox_launch` for the child's side and `docs/sandbox.md` for what is
not claimed. Standard library only, Linux only.
"""

from __future__ import annotations

import functools
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from grpo_cli.errors import GrpoError, error
from grpo_cli.verify.sandbox_child import End, Job, Json, Limits, RunResult, run_child
from grpo_cli.verify.sandbox_command import ENVIRONMENT, command_for
from grpo_cli.verify.sandbox_seccomp import machine_supported, seccomp_filter

__all__ = [
    "LEVELS", "LEVEL_VARIABLE", "End", "Json", "Limits", "RunResult", "SandboxLevel",
    "available_level", "call_function", "require_level", "run_program", "why_not",
]  # fmt: skip

LEVELS = ("bubblewrap", "landlock", "none")
LEVEL_VARIABLE = "GRPO_SANDBOX_LEVEL"
"""Environment variable by which a chosen level reaches worker processes."""

_INSTALL_HINT = (
    "install bubblewrap (Debian, Ubuntu: apt-get install bubblewrap), or pass --unsafe-no-sandbox "
    "on a machine that holds nothing of value"
)


@dataclass(frozen=True, slots=True)
class SandboxLevel:
    """The level in force and, for each stronger one, why it is not.

    Example:
        SandboxLevel("landlock", ("bubblewrap: the program bwrap is not installed",))
    """

    name: str
    missing: tuple[str, ...] = ()

    def __str__(self) -> str:
        text = "NO SANDBOX (limits only)" if self.name == "none" else self.name
        return f"{text} ({'; '.join(self.missing)})" if self.missing else text


def available_level() -> SandboxLevel:
    """The level that runs will use in this process; the first call tries the levels (0.2 s).

    Raises GrpoError (GR212) when neither real level works here and `none` was not asked for, or
    when a level that was asked for does not work.
    """
    return _available_level(os.environ.get(LEVEL_VARIABLE))


def require_level(name: str | None) -> SandboxLevel:
    """Use this level from now on, also in processes started later; None: the strongest there is.

    `none` is what `--unsafe-no-sandbox` asks for. Raises GrpoError (GR212) as `available_level`.
    """
    if name is None:
        os.environ.pop(LEVEL_VARIABLE, None)
    else:
        os.environ[LEVEL_VARIABLE] = name
    return available_level()


@functools.cache
def _available_level(asked: str | None) -> SandboxLevel:
    if asked is not None:
        if asked not in LEVELS:
            raise error("GR212", f"no sandbox level '{asked}'", hint=f"one of: {', '.join(LEVELS)}")
        if asked != "none" and (reason := why_not(asked)):
            raise error("GR212", f"the sandbox level {asked} does not work: {reason}")
        return SandboxLevel(asked)
    missing: list[str] = []
    for name in LEVELS[:-1]:
        if not (reason := why_not(name)):
            return SandboxLevel(name, tuple(missing))
        missing.append(f"{name}: {reason}")
    raise error("GR212", f"no sandbox for programs here: {'; '.join(missing)}", hint=_INSTALL_HINT)


def call_function(
    source: str,
    name: str,
    calls: Sequence[Mapping[str, Json]],
    limits: Limits,
    *,
    level: str | None = None,
) -> RunResult:
    """Run a program and call its function `name` (or `Class.method`) once per entry of `calls`.

    An entry is {"args": [...], "kwargs": {...}}. All calls share one process; the limits are for
    all of them together. Raises GrpoError (GR212) when there is no sandbox.
    """
    return _run(Job("function", source, name=name, calls=calls), limits, level)


def run_program(source: str, stdin: str, limits: Limits, *, level: str | None = None) -> RunResult:
    """Run a program that reads `stdin` and writes its stdout. Raises GrpoError as above."""
    return _run(Job("stdin", source, stdin=stdin), limits, level)


def _run(job: Job, limits: Limits, level: str | None) -> RunResult:
    level = level or available_level().name
    seccomp = seccomp_filter(allow_exec=level == "bubblewrap") if level != "none" else b""
    return run_child(command_for(level, limits), job, limits, seccomp, ENVIRONMENT)


_PROBE = """
import collections, heapq, itertools, math, os, re, socket, threading
def probe(sentinel):
    facts = []
    for what, attempt in [
        ("read a file", lambda: open(sentinel).read()),
        ("read /etc/passwd", lambda: open("/etc/passwd").read()),
        ("write a file", lambda: open(sentinel, "r+")),
        ("open a socket", socket.socket),
        ("start a process", os.fork),
        ("signal a process", lambda: os.kill(os.getppid(), 0)),
    ]:
        try:
            attempt()
        except OSError:
            continue
        facts.append(what)
    worker = threading.Thread(target=facts.append, args=("",))
    worker.start()
    worker.join()
    return facts
"""


def why_not(level: str) -> str | None:
    """Why a level does not work here, or None when it does: one program is run at it and looks out.

    The program must run with its imports and threads, and must not be able to read, write, connect,
    fork or signal.
    """
    if sys.platform != "linux":
        return "it needs Linux"
    if not machine_supported():
        return "there is no table of system calls for this processor"
    if level == "bubblewrap" and shutil.which("bwrap") is None:
        return "the program bwrap is not installed"
    calls: list[Mapping[str, Json]] = [{"args": [str(Path(__file__).resolve())], "kwargs": {}}]
    try:
        run = call_function(_PROBE, "probe", calls, Limits(cpu_s=5), level=level)
    except (OSError, GrpoError) as exc:
        return str(exc)
    outcome = run.outcomes.get(0)
    if run.end is not End.EXITED or outcome is None or outcome.error is not None:
        said = (outcome.error if outcome else None) or _last_line(run.stderr_tail)
        return f"a test program did not run in it ({said or run.end})"
    if outcome.value != [""]:
        facts = outcome.value if isinstance(outcome.value, list) else []
        return f"a program inside could still {', '.join(str(fact) for fact in facts if fact)}"
    return None


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1][:200] if lines else ""
