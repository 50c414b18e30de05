"""Load a verifier and call it without ever losing a failure. Must not import torch.

A verifier is a folder with a `verifier.py`, loaded by path, not by name: `exact_integer` and others
are also names on PyPI. It defines `verify(text, reference, **options) -> Verdict`, and may define
`answer(reference) -> str` (the shortest completion that gives `reference` as its answer), `OPTIONS`
(option name -> allowed values, the first is the default), `KIND`, and `SAMPLE_LIMIT_S` (wall
seconds that one sample may need, default 5). Further `*.py` files of the folder are imported
relatively (`from .units import ...`).

A function of one's own is loaded from its file: `reward.py:check` with the same contract (a plain
number is taken as its score), `trl:pkg.mod:fn` for a TRL reward function and `verl:file.py:fn` for
a verl `compute_score`; `adapters.py` says how those are called.
"""

from __future__ import annotations

import difflib
import hashlib
import importlib.util
import inspect
import math
import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType

from grpo_cli.errors import error
from grpo_cli.types import Status, Verdict
from grpo_cli.verify.adapters import TRL_OPTIONS, VERL_OPTIONS, from_number, from_trl, from_verl
from grpo_cli.verify.source import SourceKind, VerifierSource

__all__ = ["LoadedVerifier", "VerifierSource", "load_source", "load_verifier"]

CODE_FILE = "verifier.py"
SAMPLE_LIMIT_S = 5.0
KINDS = ("integer", "number", "math", "choice", "format", "code")
"""What `KIND` may be: which generated variants and exploit families fit a verifier."""
_CONTRACT = "it must define verify(text: str, reference: str) -> Verdict"


@dataclass(frozen=True, slots=True)
class LoadedVerifier:
    """A verifier ready to call in this process, its options bound."""

    source: VerifierSource
    verify: Callable[[str, str], Verdict]
    kind: str = "number"
    """The module's `KIND`; not `source.kind`, which says how its code is found."""
    answer: Callable[[str], str] | None = None
    """`answer(reference)` of the module, or None when it has none."""
    convention: str = "verify(text, reference)"
    """How the function is called, for people; guessed for TRL and verl functions."""
    sample_limit_s: float = SAMPLE_LIMIT_S
    """Wall seconds a sample may take where a recipe sets no limit: the module's SAMPLE_LIMIT_S."""

    @property
    def name(self) -> str:
        """Its name for people."""
        return self.source.name

    @property
    def path(self) -> Path:
        """Its folder or file (a dotted module's name, as it stands)."""
        return Path(self.source.target)

    @property
    def sha256(self) -> str:
        """Identity of its code (hex)."""
        return self.source.sha256

    def __call__(self, text: str, reference: str) -> Verdict:
        """The verdict on one completion, with `elapsed_s` filled in. Never raises.

        An exception, something that is not a Verdict, and a score that does not fit its status
        become Status.ERROR with a NaN score: a broken verifier is not a wrong answer.
        """
        begun = time.perf_counter()
        try:
            verdict = self.verify(text, reference)
        except (Exception, SystemExit) as exc:
            verdict = broken(f"{type(exc).__name__}: {exc}")
        elapsed_s = time.perf_counter() - begun
        if not isinstance(verdict, Verdict):
            verdict = broken(f"verify returned {type(verdict).__name__}, not a Verdict")
        elif problem := _problem(verdict):
            verdict = broken(problem)
        return replace(verdict, elapsed_s=elapsed_s)


def load_verifier(
    name_or_path: str, verifiers_dir: Path, options: Mapping[str, str] | None = None
) -> LoadedVerifier:
    """The verifier in the folder `verifiers_dir/NAME`, in a folder at a path, or a function.

    A value with a path separator, or one that starts with `.` or `~`, is the path of a folder;
    `PATH.py` and `PATH.py:FUNC` (default `verify`) are a function, `trl:TARGET:FUNC` and
    `verl:TARGET:FUNC` a function with that library's arguments, where TARGET is a `.py` file or a
    dotted module.

    Raises:
        GrpoError: GR205 when the code is missing, cannot be imported or lacks the function, and
            when an option or its value is unknown.
    """
    kind, target, function = _parse(name_or_path, verifiers_dir)
    if kind == "folder":
        name = Path(target).name
    else:
        name = f"{Path(target).stem if target.endswith('.py') else target}:{function}"
    module, sha256 = _import(kind, target)
    return _build(kind, target, function, name, sha256, module, options or {})


def load_source(source: VerifierSource) -> LoadedVerifier:
    """The same verifier again, in a worker process.

    Raises:
        GrpoError: GR205 as `load_verifier`, and when the code is no longer that of `sha256`.
    """
    module, sha256 = _import(source.kind, source.target)
    if sha256 != source.sha256:
        raise error(
            "GR205",
            f"the code of the verifier {source.name} has changed since it was loaded",
            hint="start again, so that one version gives all verdicts",
        )
    args = (source.kind, source.target, source.function, source.name, sha256)
    return _build(*args, module, source.options)


def broken(detail: str) -> Verdict:
    """The verdict of a verifier that could not do its work."""
    return Verdict(score=math.nan, status=Status.ERROR, detail=detail)


def _parse(name_or_path: str, verifiers_dir: Path) -> tuple[SourceKind, str, str]:
    """How the code is found, where it is, and the name of the function."""
    libraries: tuple[SourceKind, ...] = ("trl", "verl")
    for kind in libraries:
        if name_or_path.startswith(f"{kind}:"):
            rest = name_or_path.removeprefix(f"{kind}:")
            target, _, function = rest.rpartition(":")
            if not target or not function:
                raise error(
                    "GR205",
                    f"no function in '{rest}'",
                    hint="write file.py:function or package.module:function",
                )
            return kind, _file(target) if target.endswith(".py") else target, function
    path, colon, function = name_or_path.rpartition(":")
    if name_or_path.endswith(".py"):
        return "function", _file(name_or_path), "verify"
    if colon and path.endswith(".py"):
        return "function", _file(path), function
    is_path = any(sep in name_or_path for sep in "/\\") or name_or_path.startswith((".", "~"))
    folder = Path(name_or_path).expanduser() if is_path else verifiers_dir / name_or_path
    if not name_or_path or not folder.is_dir():
        raise error(
            "GR205",
            f"no verifier '{name_or_path}'" + ("" if is_path else f" in {verifiers_dir}"),
            hint=_suggest(folder.name, folder.parent if is_path else verifiers_dir),
        )
    if not (folder / CODE_FILE).is_file():
        raise error("GR205", f"the verifier folder {folder} has no {CODE_FILE}", hint=_CONTRACT)
    return "folder", str(folder.resolve()), "verify"


def _file(text: str) -> str:
    path = Path(text).expanduser()
    if not path.is_file():
        raise error("GR205", f"no file '{text}' here", hint="pass the path of a .py file")
    return str(path.resolve())


def _import(kind: SourceKind, target: str) -> tuple[ModuleType, str]:
    """The module and the SHA-256 of its code."""
    if kind != "folder" and not target.endswith(".py"):
        return _import_dotted(target)
    folder = Path(target) if kind == "folder" else None
    file = folder / CODE_FILE if folder else Path(target)
    if folder is None and str(file.parent) not in sys.path:
        # What lies beside a script can be imported by it. Last, so that it hides nothing.
        sys.path.append(str(file.parent))
    code = file.read_bytes()
    sha256 = _folder_hash(folder) if folder else hashlib.sha256(code).hexdigest()
    # The hash keeps two versions of one verifier apart; registering the module under it is what
    # dataclasses and pickling inside the verifier need. A folder is a package, so that its own
    # files can be imported relatively.
    stem = re.sub(r"\W", "_", folder.name if folder else file.stem)
    module_name = f"grpo_verifier_{stem}_{sha256[:12]}"
    spec = importlib.util.spec_from_file_location(
        module_name, file, submodule_search_locations=[str(folder)] if folder else None
    )
    assert spec is not None, file
    module = importlib.util.module_from_spec(spec)
    for name in [n for n in sys.modules if n.startswith(f"{module_name}.")]:
        del sys.modules[name]
    sys.modules[module_name] = module
    try:
        with _no_bytecode():
            # Not the loader's exec_module: it may take a stale .pyc, and the code that runs must be
            # the code that was hashed.
            exec(compile(code, str(file), "exec", dont_inherit=True), module.__dict__)
    except (Exception, SystemExit) as exc:
        del sys.modules[module_name]
        raise error("GR205", f"{file} cannot be imported: {type(exc).__name__}: {exc}") from exc
    return module, sha256


def _import_dotted(target: str) -> tuple[ModuleType, str]:
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    try:
        module = importlib.import_module(target)
    except (Exception, SystemExit) as exc:
        raise error(
            "GR205",
            f"the module {target} cannot be imported: {type(exc).__name__}: {exc}",
            hint="run in the folder that holds it, install it, or pass its .py file",
        ) from exc
    file = getattr(module, "__file__", None)
    return module, hashlib.sha256(Path(file).read_bytes() if file else b"").hexdigest()


def _folder_hash(folder: Path) -> str:
    """SHA-256 of `verifier.py` alone, or of every `*.py` with its name when there are more."""
    files = sorted(p for p in folder.glob("*.py") if p.is_file())
    if len(files) == 1:
        return hashlib.sha256(files[0].read_bytes()).hexdigest()
    digest = hashlib.sha256()
    for file in files:
        code = file.read_bytes()
        digest.update(f"{file.name}:{len(code)}\n".encode())
        digest.update(code)
    return digest.hexdigest()


@contextmanager
def _no_bytecode() -> Iterator[None]:
    """Leave no `__pycache__` in a verifier's folder: two edits in a second would share it."""
    before, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    try:
        yield
    finally:
        sys.dont_write_bytecode = before


def _build(
    kind: SourceKind,
    target: str,
    function_name: str,
    name: str,
    sha256: str,
    module: ModuleType,
    options: Mapping[str, str],
) -> LoadedVerifier:
    function = getattr(module, function_name, None)
    if not callable(function):
        names = [n for n, v in vars(module).items() if callable(v) and not n.startswith("_")]
        close = difflib.get_close_matches(function_name, names, n=1)
        hint = f"did you mean '{close[0]}'?" if close else None
        if function_name == "verify":
            hint = f"{hint} rename it to 'verify'" if hint else _CONTRACT
        where = Path(target) / CODE_FILE if kind == "folder" else target
        raise error("GR205", f"{where} defines no function '{function_name}'", hint=hint)
    if kind == "trl":
        chosen = _choose(name, TRL_OPTIONS, options)
        verify, chosen, convention = from_trl(function, name, chosen)
        source = VerifierSource(kind, target, function_name, name, sha256, chosen)
        return LoadedVerifier(source, verify, convention=convention)
    if kind == "verl":
        chosen = _choose(name, VERL_OPTIONS, options)
        verify, convention = from_verl(function, name, chosen)
        source = VerifierSource(kind, target, function_name, name, sha256, chosen)
        return LoadedVerifier(source, verify, convention=convention)
    chosen = _choose(name, _declared(module, name), options)
    source = VerifierSource(kind, target, function_name, name, sha256, chosen)
    answer_kind = getattr(module, "KIND", "number")
    if answer_kind not in KINDS:
        close = difflib.get_close_matches(str(answer_kind), KINDS, n=1)
        raise error(
            "GR205",
            f"the verifier {name} has KIND {answer_kind!r}",
            hint=f"did you mean '{close[0]}'?" if close else f"kinds: {', '.join(KINDS)}",
        )
    _check_call(function, name, chosen)
    limit_s = getattr(module, "SAMPLE_LIMIT_S", SAMPLE_LIMIT_S)
    if isinstance(limit_s, bool) or not isinstance(limit_s, int | float) or not limit_s > 0:
        raise error("GR205", f"SAMPLE_LIMIT_S of the verifier {name} is no number of seconds")
    bound = _bind(function, chosen)
    answer = getattr(module, "answer", None)
    return LoadedVerifier(
        source,
        bound if kind == "folder" else from_number(bound),
        answer_kind,
        answer if callable(answer) else None,
        sample_limit_s=float(limit_s),
    )


def _check_call(function: Callable[..., object], name: str, options: Mapping[str, str]) -> None:
    """Refuse at once what would fail on every sample."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # some callables have no signature
        return
    try:
        signature.bind("", "", **options)
    except TypeError as problem:
        takes = ", ".join(["text", "reference", *options])
        raise error(
            "GR205",
            f"the verifier {name} cannot be called with ({takes}): {problem}",
            hint=_CONTRACT + "; for other signatures see --trl and --verl",
        ) from None


def _bind(function: Callable[..., Verdict], options: Mapping[str, str]) -> Callable[..., Verdict]:
    if not options:
        return function
    chosen = dict(options)
    return lambda text, reference: function(text, reference, **chosen)


def _declared(module: ModuleType, name: str) -> Mapping[str, tuple[str, ...]]:
    """The module's OPTIONS, checked."""
    declared = getattr(module, "OPTIONS", {})
    well_formed = isinstance(declared, Mapping) and all(
        isinstance(key, str)
        and isinstance(values, tuple | list)
        and values
        and all(isinstance(value, str) for value in values)
        for key, values in declared.items()
    )
    if not well_formed:
        raise error(
            "GR205",
            f"OPTIONS of the verifier {name} is not a mapping of names to tuples of text",
            hint='write OPTIONS = {"percent": ("strict", "equal")}; the first is the default',
        )
    return {key: tuple(values) for key, values in declared.items()}


def _choose(
    name: str, declared: Mapping[str, tuple[str, ...]], given: Mapping[str, str]
) -> dict[str, str]:
    """Every declared option with its value. An empty tuple of values allows any text."""
    for key, value in given.items():
        if key not in declared:
            close = difflib.get_close_matches(key, declared, n=1)
            known = ", ".join(sorted(declared))
            raise error(
                "GR205",
                f"the verifier {name} has no option '{key}'",
                hint=f"did you mean '{close[0]}'?"
                if close
                else (f"its options: {known}" if known else "it has no options"),
            )
        if declared[key] and value not in declared[key]:
            close = difflib.get_close_matches(str(value), declared[key], n=1)
            raise error(
                "GR205",
                f"the verifier {name}: option '{key}' cannot be '{value}'",
                hint=f"did you mean '{close[0]}'?"
                if close
                else f"its values: {', '.join(declared[key])}",
            )
    return {
        key: given.get(key, values[0] if values else "") for key, values in sorted(declared.items())
    }


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
