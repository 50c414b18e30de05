"""Load a verifier from its folder and call it without ever losing a failure.

A verifier is a folder with a `verifier.py` that defines `verify(text, reference) -> Verdict`. It is
loaded by path, not by name: `exact_integer` and others are also names on PyPI.
"""

from __future__ import annotations

import difflib
import hashlib
import importlib.util
import math
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from grpo_cli.errors import error
from grpo_cli.types import Status, Verdict

CODE_FILE = "verifier.py"


@dataclass(frozen=True, slots=True)
class LoadedVerifier:
    """A verifier's function with the identity of its code. `sha256` is of `verifier.py` (hex)."""

    name: str
    path: Path
    sha256: str
    verify: Callable[[str, str], Verdict]

    def __call__(self, text: str, reference: str) -> Verdict:
        """The verdict on one completion, with `elapsed_s` filled in. Never raises.

        An exception, something that is not a Verdict, and a score that does not fit its status
        become Status.ERROR with a NaN score: a broken verifier is not a wrong answer.
        """
        begun = time.perf_counter()
        try:
            verdict = self.verify(text, reference)
        except (Exception, SystemExit) as exc:
            verdict = _broken(f"{type(exc).__name__}: {exc}")
        elapsed_s = time.perf_counter() - begun
        if not isinstance(verdict, Verdict):
            verdict = _broken(f"verify returned {type(verdict).__name__}, not a Verdict")
        elif problem := _problem(verdict):
            verdict = _broken(problem)
        return replace(verdict, elapsed_s=elapsed_s)


def load_verifier(name_or_path: str, verifiers_dir: Path) -> LoadedVerifier:
    """The verifier in the folder `verifiers_dir/NAME`, or in the folder at a path.

    A value with a path separator, or one that starts with `.` or `~`, is a path. Raises GrpoError
    (GR205) when the folder, its `verifier.py` or the function is missing or cannot be imported.
    """
    is_path = any(sep in name_or_path for sep in "/\\") or name_or_path.startswith((".", "~"))
    folder = Path(name_or_path).expanduser() if is_path else verifiers_dir / name_or_path
    code_path = folder / CODE_FILE
    if not name_or_path or not folder.is_dir():
        raise error(
            "GR205",
            f"no verifier '{name_or_path}'" + ("" if is_path else f" in {verifiers_dir}"),
            hint=_suggest(folder.name, folder.parent if is_path else verifiers_dir),
        )
    if not code_path.is_file():
        raise error(
            "GR205",
            f"the verifier folder {folder} has no {CODE_FILE}",
            hint="it must define verify(text: str, reference: str) -> Verdict",
        )
    name = folder.resolve().name
    code = code_path.read_bytes()
    sha256 = hashlib.sha256(code).hexdigest()
    # The hash keeps two versions of one verifier apart; registering the module under it is what
    # dataclasses and pickling inside the verifier need.
    module_name = f"grpo_verifier_{name}_{sha256[:12]}"
    spec = importlib.util.spec_from_file_location(module_name, code_path)
    assert spec is not None, code_path
    assert spec.loader is not None, code_path
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as exc:
        del sys.modules[module_name]
        raise error(
            "GR205", f"{code_path} cannot be imported: {type(exc).__name__}: {exc}"
        ) from exc
    function = getattr(module, "verify", None)
    if not callable(function):
        names = [n for n, v in vars(module).items() if callable(v) and not n.startswith("_")]
        close = difflib.get_close_matches("verify", names, n=1)
        raise error(
            "GR205",
            f"{code_path} defines no function 'verify'",
            hint=f"did you mean '{close[0]}'? rename it to 'verify'"
            if close
            else "it must define verify(text: str, reference: str) -> Verdict",
        )
    return LoadedVerifier(name, folder, sha256, function)


def _broken(detail: str) -> Verdict:
    return Verdict(score=math.nan, status=Status.ERROR, detail=detail)


def _problem(verdict: Verdict) -> str | None:
    """What is wrong with a verdict, or None."""
    score = verdict.score
    if isinstance(score, bool) or not isinstance(score, int | float):
        return f"the score is {type(score).__name__}, not a number"
    if not isinstance(verdict.status, Status):
        return f"the status is {verdict.status!r}, not a Status"
    for name, value in (("parsed", verdict.parsed), ("detail", verdict.detail)):
        if value is not None and not isinstance(value, str):
            return f"{name} is {type(value).__name__}, not text or None"
    if verdict.missing:
        return None if math.isnan(score) else f"status {verdict.status} must have a NaN score"
    return None if 0 <= score <= 1 else f"the score {score} is outside 0..1"


def _suggest(name: str, parent: Path) -> str:
    """A near name, or the list of names, of the verifier folders in `parent`."""
    names = sorted(p.parent.name for p in parent.glob(f"*/{CODE_FILE}"))
    if close := difflib.get_close_matches(name, names, n=1):
        return f"did you mean '{close[0]}'?"
    return f"known verifiers: {', '.join(names)}" if names else f"{parent} holds no verifier"
