"""Objectives from a file of the user's own. A plug-in is code: it is named, hashed and kept."""

from __future__ import annotations

import hashlib
import importlib.util
from collections.abc import Sequence
from pathlib import Path

from grpo_cli.errors import error
from grpo_cli.objective.kinds import objective_kinds
from grpo_cli.recipe.schema import use_objectives


def load_plugins(files: Sequence[Path]) -> dict[str, str]:
    """Run each file, so that recipes may name the objectives it defines.

    Returns:
        `plugin_<stem>` -> SHA-256 of the file.

    Raises:
        GrpoError: GR112 when a file is missing, fails, defines no objective, or defines a kind
            that exists.
    """
    hashes: dict[str, str] = {}
    for file in files:
        known = {cls.model_fields["kind"].default: cls for cls in objective_kinds()}
        _run(file)
        objective_kinds.cache_clear()
        found = objective_kinds()
        new = [cls for cls in found if cls not in known.values()]
        if not new:
            raise error(
                "GR112",
                f"plug-in {file} defines no objective",
                hint="define a class that extends grpo_cli.objective.base.Objective and has a "
                'literal `kind`, such as `kind: Literal["mine"] = "mine"`',
            )
        for cls in new:
            kind = cls.model_fields["kind"].default
            if kind in known:
                raise error("GR112", f"plug-in {file}: objective kind `{kind}` exists already")
        hashes[f"plugin_{file.stem}"] = hashlib.sha256(file.read_bytes()).hexdigest()
    if hashes:
        use_objectives()
    return hashes


def _run(file: Path) -> None:
    if not file.is_file():
        raise error("GR112", f"no plug-in file `{file}` here", hint="pass the path of a .py file")
    spec = importlib.util.spec_from_file_location(f"grpo_plugin_{file.stem}", file)
    if spec is None or spec.loader is None:
        raise error("GR112", f"plug-in {file} is not a Python file", hint="name it with .py")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as problem:
        # Whatever the user's code raises at import is one message, with its place.
        line = getattr(problem, "lineno", None) or _line(problem, file)
        raise error(
            "GR112", f"plug-in {file}:{line} failed: {type(problem).__name__}: {problem}"
        ) from problem


def _line(problem: Exception, file: Path) -> int:
    trace, line = problem.__traceback__, 1
    while trace is not None:
        if Path(trace.tb_frame.f_code.co_filename).resolve() == file.resolve():
            line = trace.tb_lineno
        trace = trace.tb_next
    return line
