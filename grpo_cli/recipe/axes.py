"""What `--axis` means: a named list of arms, each a part of a recipe.

    --axis clip                     recipes/axes/clip.yaml
    --axis my/axis.yaml             a file of one's own
    --axis optim.lr=1e-5,2e-5       any recipe key, one arm per value

An axis file has a `summary` and `arms`: name -> a part of a recipe, merged over the recipe like a
file that extends it. An arm may name another recipe to start from with `recipe`. Must not import
torch.
"""

from __future__ import annotations

import os.path
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from grpo_cli.errors import GrpoError, Problem, Span, error
from grpo_cli.recipe import locate
from grpo_cli.recipe.load import Loaded, assignment, load
from grpo_cli.recipe.problems import did_you_mean, schema_paths
from grpo_cli.recipe.schema import ALGORITHM_KEYS, SETUP_KEYS
from grpo_cli.recipe.yaml_tree import Tree, parse, read_text

_ARM = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,31}")
_OPEN, _CLOSE = "[{", "]}"


@dataclass(frozen=True, slots=True)
class AxisArm:
    """One setting of an axis. `recipe` is another recipe to start from, or None."""

    name: str
    layer: Tree
    recipe: str | None = None


@dataclass(frozen=True, slots=True)
class Axis:
    """A factor of the experiment and its settings.

    Example:
        load_axis("std_norm", 1).arms[0].name == "group"
    """

    name: str
    summary: str
    arms: tuple[AxisArm, ...]
    source: tuple[str, str] | None = None
    """Shown path and text of the axis file."""


def load_axis(typed: str, number: int) -> Axis:
    """The axis that a person means by `--axis TYPED`, the `number`-th of the command.

    Raises:
        GrpoError: GR107 for a name that is not known, GR111 for `key=...` that cannot be read,
            GR101 to GR105 for what is wrong in a file.
    """
    if "=" in typed:
        return _key_axis(typed, number)
    is_path = "/" in typed or os.path.sep in typed or typed.endswith(locate.SUFFIXES)
    if not is_path:
        names = locate.axis_names()
        if typed not in names:
            raise _unknown(typed, names)
        return _file_axis(locate.axes_dir() / f"{typed}.yaml")
    return _file_axis(Path(typed))


def load_arm(
    base: str, setup: str | None, sets: Sequence[str], chosen: Sequence[tuple[Axis, AxisArm]]
) -> Loaded:
    """The recipe of one arm: the base recipe with one setting of each chosen axis on top.

    Raises:
        GrpoError: what is wrong with it, at the place in the axis file or the option.
    """
    start = next((arm.recipe for _, arm in chosen if arm.recipe is not None), base)
    if start != base and setup is None:
        # Another recipe may come with another setup; an ablation compares on one.
        setup = load(base, sets=sets).recipe.setup
    loaded = load(start, setup=setup, sets=sets, layers=[arm.layer for _, arm in chosen])
    for axis, _ in chosen:
        if axis.source is not None:
            loaded.sources[axis.source[0]] = axis.source[1]
    return loaded


def _unknown(typed: str, names: Sequence[str]) -> GrpoError:
    hint = did_you_mean(typed, names)
    if hint is None and (key := _key_like(typed)):
        hint = f"`{key}` is a recipe key: give it values, `--axis {key}=A,B`"
    return error(
        "GR107", f"no axis `{typed}`", hint=hint or f"shipped axes: {', '.join(names) or 'none'}"
    )


def _key_like(typed: str) -> str | None:
    paths = list(schema_paths())
    return typed if typed in paths else next((p for p in paths if p.endswith(f".{typed}")), None)


def _key_axis(typed: str, number: int) -> Axis:
    key, _, values = typed.partition("=")
    parts = list(_split(values))
    known = list(schema_paths())
    span = Span(f"--axis #{number}", 1, 1, max(len(key), 1), typed)
    if key not in known:
        raise error(
            "GR101",
            f"unknown key `{key}`",
            span=span,
            hint=did_you_mean(key, known) or f"shipped axes: {', '.join(locate.axis_names())}",
        )
    if len(parts) < 2 or not all(part.strip() for part in parts):
        raise error(
            "GR111",
            "an axis needs at least two values",
            span=span,
            hint=f"write `--axis {key}=A,B`",
        )
    names: list[str] = []
    arms = []
    for part in parts:
        name = _unique(_arm_name(part), names)
        names.append(name)
        arms.append(AxisArm(name, assignment(f"{key}={part.strip()}", number, "--axis")))
    return Axis(key.rpartition(".")[2], f"{key}: {', '.join(parts)}", tuple(arms))


def _split(values: str) -> Iterator[str]:
    """The values between commas that stand outside of brackets and quotes."""
    depth, quote, start = 0, "", 0
    for i, char in enumerate(values):
        if quote:
            quote = "" if char == quote else quote
        elif char in "\"'":
            quote = char
        elif char in _OPEN:
            depth += 1
        elif char in _CLOSE:
            depth -= 1
        elif char == "," and depth == 0:
            yield values[start:i]
            start = i + 1
    yield values[start:]


def _arm_name(value: str) -> str:
    """A value as part of a folder's name."""
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", value.strip()).strip("-._")[:32]
    return re.sub(r"\.{2,}", ".", name) or "value"


def _unique(name: str, taken: Sequence[str]) -> str:
    number = 2
    found = name
    while found in taken:
        found, number = f"{name[:29]}-{number}", number + 1
    return found


def _file_axis(path: Path) -> Axis:
    shown = locate.shown_path(path)
    text = read_text(path, shown)
    tree, problems = parse(text, shown)
    arms: list[AxisArm] = []
    summary = tree.get("summary")
    top = tree.value if isinstance(tree.value, dict) else {}
    for key, node in top.items():
        if key not in ("summary", "arms"):
            hint = did_you_mean(key, ("summary", "arms")) or "an axis has `summary` and `arms`"
            problems.append(Problem("GR101", f"unknown key `{key}`", node.key, hint))
    listed = tree.get("arms")
    entries = listed.value if listed is not None else None
    if not isinstance(entries, dict) or len(entries) < 2:
        place = listed.span if listed is not None else tree.span
        hint = "write `arms:` and below it `NAME: {key: value}` lines"
        problems.append(Problem("GR103", "an axis needs at least two `arms`", place, hint))
        entries = {}
    for name, arm in entries.items():
        problems += _arm_problems(name, arm)
        if isinstance(arm.value, dict):
            start = arm.get("recipe")
            layer = {key: part for key, part in arm.value.items() if key != "recipe"}
            recipe = None if start is None else str(start.value)
            arms.append(AxisArm(name, replace(arm, value=layer), recipe))
    if problems:
        raise GrpoError(*problems)
    words = str(summary.value) if summary is not None else ""
    return Axis(path.stem, words, tuple(arms), (shown, text))


def _arm_problems(name: str, node: Tree) -> Iterator[Problem]:
    if not _ARM.fullmatch(name) or ".." in name:
        hint = "use up to 32 letters, digits, '.', '_' and '-', the first a letter or digit"
        yield Problem("GR102", f"`{name}` cannot name an arm", node.key, hint)
    if not isinstance(node.value, dict) or not node.value:
        yield Problem("GR102", f"arm `{name}` must be a mapping of recipe keys", node.span)
        return
    known = (ALGORITHM_KEYS | SETUP_KEYS) - {"summary", "setup"} | {"recipe"}
    for key, part in node.value.items():
        if key not in known:
            close = did_you_mean(key, known)
            yield Problem("GR101", f"unknown key `{key}` in arm `{name}`", part.key, close)
    recipe = node.get("recipe")
    if recipe is not None and not isinstance(recipe.value, str):
        yield Problem("GR102", "`recipe` must be the name of a recipe", recipe.span)
