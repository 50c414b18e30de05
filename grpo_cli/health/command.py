"""The `grpo ablate` command that tests what a finding suspects, for a run's own recipe."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from grpo_cli.errors import GrpoError
from grpo_cli.health.series import RunSeries
from grpo_cli.recipe import locate
from grpo_cli.recipe.axes import load_arm, load_axis
from grpo_cli.recipe.load import leaves, load
from grpo_cli.recipe.schema import Recipe, has_effect


class Commands:
    """Builds commands for one run. A recipe file that is gone leaves none to build."""

    def __init__(self, run: RunSeries) -> None:
        self._run = run

    def test(self, axes: Sequence[str]) -> str | None:
        """The command with the first of `axes` whose arms all load and differ; None without one."""
        if self._base is None:
            return None
        recipe, setup, sets = self._base
        for typed in axes:
            try:
                axis = load_axis(typed, 1)
                arms = [load_arm(recipe, setup, sets, [(axis, arm)]).recipe for arm in axis.arms]
            except GrpoError:
                continue
            if len({arm.hash for arm in arms}) == len(arms):
                key = typed.partition("=")[0]
                shown = [text for text in sets if not _under(text, key)]
                words = ["grpo", "ablate", recipe, "--axis", typed, "--setup", setup]
                return shlex.join([*words, *(word for text in shown for word in ("--set", text))])
        return None

    @cached_property
    def _base(self) -> tuple[str, str, list[str]] | None:
        """Recipe, setup and `--set` assignments that give the run's own recipe."""
        setup = self._run.setting("setup")
        for name in self._recipe_names():
            try:
                loaded = load(name, setup=setup)
                sets = self._sets(loaded.recipe)
                again = load(name, setup=setup, sets=sets)
            except GrpoError:
                continue
            if not self._sets(again.recipe):
                return name, setup, sets
        return None

    def _recipe_names(self) -> list[str]:
        """The shipped recipe of the run's name, its ablation's, the file it says it came from."""
        name = self._run.info.recipe
        found = [name] if name in locate.recipe_names() else []
        if (planned := self._run.path.resolve().parent.parent / "plan.json").is_file():
            # A cell's recipe name is that of its ablation; whoever moved it away gets no command.
            try:
                found.append(str(json.loads(planned.read_bytes())["recipe"]))
            except (OSError, ValueError, KeyError, TypeError):
                return found
        try:
            origins = json.loads((self._run.path / "origins.json").read_bytes())
        except (OSError, ValueError):
            return found
        files = {str(place).rpartition(":")[0] for place in origins.values()}
        return found + sorted(file for file in files if Path(file).stem == name and file != name)

    def _sets(self, recipe: Recipe) -> list[str]:
        """What must be set for `recipe` to become the run's; a changed `kind` comes first."""
        theirs = leaves(recipe)
        own: dict[str, Any] = {}
        _flatten("", self._run.recipe, own)
        changed = [
            key
            for key, value in own.items()
            if has_effect(key) and (key not in theirs or theirs[key] != value)
        ]
        kinds = {key.rpartition(".")[0] for key in changed if key.endswith(".kind")}
        # A new kind begins from its defaults, so all its keys are set.
        changed += [
            key
            for key, value in own.items()
            if key.rpartition(".")[0] in kinds and key not in changed and value is not None
        ]
        return [
            f"{key}={_yaml(own[key])}"
            for key in sorted(changed, key=lambda key: (not key.endswith(".kind"), key))
        ]


def _flatten(prefix: str, value: Any, found: dict[str, Any]) -> None:
    if isinstance(value, dict):
        for key, child in value.items():
            _flatten(f"{prefix}.{key}" if prefix else key, child, found)
    else:
        found[prefix] = value


def _yaml(value: Any) -> str:
    """A value as `--set` reads it back."""
    if isinstance(value, float):
        return f"{value:g}" if float(f"{value:g}") == value else repr(value)
    if isinstance(value, str) and value.replace("_", "").replace("-", "").isalnum():
        return value
    return json.dumps(value)


def _under(assignment: str, key: str) -> bool:
    """Whether an axis over `key` overwrites the assignment anyway."""
    return assignment.partition("=")[0] == key
