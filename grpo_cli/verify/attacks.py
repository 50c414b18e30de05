"""The red-team suite of code verifiers: forgeries, escape attempts and programs that must pass.

Three families, each with its own meaning of `contained`:

- `forge`: a program that solves nothing and tries to be paid. Contained: it is not paid, and none
  of its code ran with the verifier's rights.
- `escape`: a program that tries to get out of the sandbox. Contained: nothing was seen outside.
  These run only in private mount, PID, network and IPC namespaces; where those cannot be made they
  are refused (`ran` is False), never run without.
- `control`: a right program (paid) or a wrong one (not paid). Contained: the verifier says so. A
  verifier that refuses everything contains every attack; the controls are how it shows.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from grpo_cli.errors import error
from grpo_cli.recipe.locate import verifiers_dir
from grpo_cli.types import Status, Verdict
from grpo_cli.verify.attacks_escape import ESCAPES
from grpo_cli.verify.attacks_forge import (
    CONTROLS,
    FORGERIES,
    MARK,
    WRONG,
    completion,
    function_reference,
)
from grpo_cli.verify.load import load_verifier
from grpo_cli.verify.sandbox import LEVEL_VARIABLE, LEVELS, require_level

Verify = Callable[[str, str], Verdict]
Family = Literal["forge", "escape", "control"]
_ESCAPE_LIMIT_S = 300.0


@dataclass(frozen=True, slots=True)
class AttackResult:
    """What came of one program.

    Example:
        AttackResult("300 forks", "escape", True, "exited: BlockingIOError: ...")
    """

    name: str
    family: Family
    contained: bool
    detail: str
    ran: bool = True
    """False for an attempt that was refused; it is not contained either."""


def code_battery(verify: Verify | None, level: str) -> list[AttackResult]:
    """All attacks and controls. About 10 s.

    `verify` judges the forgeries and controls; call it through something that survives its death,
    such as `VerifierPool`, for a verifier that runs programs in its own process. None: the shipped
    verifier `code` at this sandbox level. The escape attempts always run in the project's sandbox
    at `level` ("bubblewrap", "landlock", or "none" for limits only).

    Raises GrpoError (GR212) when the level does not exist or does not work here.
    """
    if verify is not None:
        return [*_forge(verify), *escape_battery(level)]
    with _at_level(level):
        shipped = load_verifier("code", verifiers_dir())
        return [*_forge(shipped), *escape_battery(level)]


def _forge(verify: Verify) -> list[AttackResult]:
    reference = function_reference()
    results = []
    with tempfile.TemporaryDirectory(prefix="grpo-forge-") as name:
        # Writable for all, so that only a sandbox keeps a program out.
        folder = Path(name)
        folder.chmod(0o777)
        mark = folder / "mark"
        for title, program in FORGERIES.items():
            verdict = verify(completion(program.replace(MARK, str(mark))), reference)
            ran_outside = mark.exists()
            mark.unlink(missing_ok=True)
            paid = verdict.score > 0  # False for NaN
            detail = "paid" if paid else _say(verdict)
            if ran_outside:
                detail = f"its code ran outside the sandbox; {detail}"
            results.append(AttackResult(title, "forge", not (paid or ran_outside), detail))
    for title, (program, its_reference) in CONTROLS.items():
        verdict = verify(completion(program), its_reference)
        right = verdict.status is Status.OK and verdict.score == 1.0
        results.append(AttackResult(title, "control", right, _say(verdict)))
    verdict = verify(completion(WRONG), reference)
    unpaid = verdict.status is Status.OK and verdict.score == 0.0
    results.append(AttackResult("a wrong solution", "control", unpaid, _say(verdict)))
    return results


def escape_battery(level: str) -> list[AttackResult]:
    """The escape attempts at a level. For tests, `level` may also be "bare": no sandbox at all."""
    if level not in (*LEVELS, "bare"):
        raise error("GR212", f"no sandbox level '{level}'", hint=f"one of: {', '.join(LEVELS)}")
    if reason := why_no_escapes():
        detail = f"not run: {reason}"
        return [AttackResult(name, "escape", False, detail, ran=False) for name in ESCAPES]
    # The outer process mounts a private file system over this folder; outside it stays empty.
    with tempfile.TemporaryDirectory(prefix="grpo-escape-") as folder:
        own = [os.readlink(f"/proc/self/ns/{kind}") for kind in ("mnt", "pid")]
        module = "grpo_cli.verify.attacks_outer"
        try:
            done = subprocess.run(
                [*_private(), sys.executable, "-P", "-B", "-m", module, level, folder, *own],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=_ESCAPE_LIMIT_S,
                cwd="/",
                env={
                    "PATH": os.environ.get("PATH", os.defpath),
                    "PYTHONPATH": str(Path(__file__).resolve().parents[2]),
                },
                start_new_session=True,
            )
        except subprocess.TimeoutExpired:
            done = None
    try:
        rows = json.loads(done.stdout) if done is not None else []
    except ValueError:
        rows = []
    seen = {str(name): (bool(contained), str(detail)) for name, contained, detail in rows}
    if done is None:
        why = f"the attempts took over {_ESCAPE_LIMIT_S:.0f} s"
    else:
        why = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
    lost = (False, f"the outer process ended early: {why}")
    return [AttackResult(name, "escape", *seen.get(name, lost)) for name in ESCAPES]


def why_no_escapes() -> str | None:
    """Why the private namespaces cannot be made here, or None when they can."""
    if sys.platform != "linux":
        return "it needs Linux"
    if shutil.which("unshare") is None:
        return "the program unshare (util-linux) is not installed"
    try:
        done = subprocess.run(
            [*_private(), "true"], capture_output=True, text=True, timeout=20, cwd="/"
        )
    except (OSError, subprocess.TimeoutExpired) as exc:
        return f"private namespaces cannot be made: {exc}"
    if done.returncode != 0:
        said = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        return f"private namespaces cannot be made: {said}"
    return None


def _private() -> list[str]:
    """The command that puts another into namespaces of its own, and kills them when it dies."""
    command = ["unshare", "--mount", "--pid", "--fork", "--mount-proc", "--net", "--ipc"]
    command += ["--propagation", "private", "--kill-child"]
    return command if os.geteuid() == 0 else [*command, "--user", "--map-root-user"]


@contextmanager
def _at_level(level: str) -> Iterator[None]:
    before = os.environ.get(LEVEL_VARIABLE)
    require_level(level)
    try:
        yield
    finally:
        if before is None:
            del os.environ[LEVEL_VARIABLE]
        else:
            os.environ[LEVEL_VARIABLE] = before


def _say(verdict: Verdict) -> str:
    return f"{verdict.status.value}, score {verdict.score:g}: {verdict.detail or ''}"[:200]
