"""Recipe files -> one `Recipe` that knows where every leaf came from.

Order of layers, later wins: the setup file and what it extends, the algorithm file and what it
extends, `--set`. Mappings merge, lists and scalars replace, and a changed `kind` replaces its node.
All problems of all files are raised together. Must not import torch.
"""

from __future__ import annotations

import os.path
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path

from grpo_cli.errors import GrpoError, Problem, Span, error
from grpo_cli.recipe import locate
from grpo_cli.recipe.problems import did_you_mean, origin, validate
from grpo_cli.recipe.schema import ALGORITHM_KEYS, SETUP_KEYS, Recipe
from grpo_cli.recipe.yaml_tree import JSON, Tree, parse, read_text

MAX_CHAIN = 50
"""Longest chain of `extends`."""

_SET_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*")


@dataclass(frozen=True, slots=True)
class Loaded:
    """A recipe and where it came from.

    Example:
        load("dapo").origins["objective.high"] == "recipes/dapo.yaml:6"
    """

    recipe: Recipe
    origins: dict[str, str]
    """Dotted leaf -> `recipes/dapo.yaml:6`, `--set #1`, `--setup` or `default`."""
    sources: dict[str, str]
    """Every file that was read: shown path -> text."""
    name: str
    """Short name: the file's stem."""
    path: Path


class Absent(Enum):
    """Marks the side of a difference that has no such leaf."""

    ABSENT = "absent"


def load(
    name_or_path: str,
    *,
    setup: str | None = None,
    sets: Sequence[str] = (),
    layers: Sequence[Tree] = (),
) -> Loaded:
    """The recipe called `name_or_path`, with another setup and single values replaced.

    Args:
        name_or_path: name of a shipped recipe, or the path of a file.
        setup: name or path of a setup file, in place of the recipe's own.
        sets: `a.b=c` assignments, applied in order after all files.
        layers: parts of recipes that win over everything else, such as an arm of an axis.

    Raises:
        GrpoError: every problem of every file, in the order the files were read, then of `sets`.
    """
    return _Load().run(name_or_path, setup, sets, layers)


def leaves(recipe: Recipe) -> dict[str, JSON]:
    """Every value of the resolved recipe by its dotted key. A list is one value."""
    found: dict[str, JSON] = {}

    def walk(prefix: str, value: JSON) -> None:
        if isinstance(value, dict):
            for key, child in value.items():
                walk(f"{prefix}.{key}" if prefix else key, child)
        else:
            found[prefix] = value

    walk("", recipe.tree())
    return found


def diff(a: Recipe, b: Recipe) -> dict[str, tuple[JSON | Absent, JSON | Absent]]:
    """The leaves that differ, `summary` aside: it describes a recipe and changes nothing."""
    left, right = leaves(a), leaves(b)
    return {
        leaf: (left.get(leaf, Absent.ABSENT), right.get(leaf, Absent.ABSENT))
        for leaf in {**left, **right}
        if leaf != "summary"
        and (leaf not in left or leaf not in right or left[leaf] != right[leaf])
    }


def merge(base: Tree | None, top: Tree) -> Tree:
    """`top` laid over `base`. A node whose `kind` changes is replaced as a whole."""
    if base is None or not isinstance(base.value, dict) or not isinstance(top.value, dict):
        return top
    old, new = base.get("kind"), top.get("kind")
    if old is not None and new is not None and old.value != new.value:
        return top
    merged = dict(base.value)
    for key, node in top.value.items():
        merged[key] = merge(merged.get(key), node)
    return replace(top, value=merged)


def is_setup_file(path: Path) -> bool:
    """Whether a file is a setup: by its keys, or by its folder's name when they do not say."""
    try:
        tree, _ = parse(read_text(path, str(path)), str(path))
    except GrpoError:
        return path.parent.name == "setup"
    keys = set(tree.value) if isinstance(tree.value, dict) else set()
    if bool(keys & (SETUP_KEYS - ALGORITHM_KEYS)) != bool(keys & (ALGORITHM_KEYS - SETUP_KEYS)):
        return bool(keys & (SETUP_KEYS - ALGORITHM_KEYS))
    return path.parent.name == "setup"


def summary_of(path: Path) -> str:
    """The `summary` of a recipe or setup file, without looking at the rest of it.

    Raises:
        GrpoError: the file cannot be read as YAML.
    """
    shown = locate.shown_path(path)
    summary = parse(read_text(path, shown), shown)[0].get("summary")
    return str(summary.value) if summary is not None else ""


def find(typed: str, *, setup: bool = False) -> Path:
    """The file that a person means by a name or a path.

    A name is looked up in the data folder first, so that it means the same in every folder. What
    has a slash or ends in .yaml is a path, relative to the working directory.

    Raises:
        GrpoError: GR107 with the closest known name.
    """
    folder = locate.setups_dir() if setup else locate.recipes_dir()
    names = locate.setup_names() if setup else locate.recipe_names()
    what = "setup" if setup else "recipe"
    is_path = "/" in typed or os.path.sep in typed or typed.endswith(locate.SUFFIXES)
    if not is_path and typed in names:
        return folder / f"{typed}.yaml"
    if os.path.exists(typed):
        return Path(typed)
    stem = Path(typed).stem
    if is_path and stem in names:
        message = f"no file `{typed}` here"
        hint = f"`{stem}` is a shipped {what}: use its name, `{stem}`"
        raise error("GR107", message, hint=hint)
    hint = did_you_mean(stem, names) or f"shipped {what}s: {', '.join(names) or 'none'}"
    if not setup and typed in locate.setup_names():
        hint = f"`{typed}` is a setup: use `--setup {typed}` with a recipe"
    raise error("GR107", f"no {'file' if is_path else what} `{typed}`", hint=hint)


class _Load:
    """One call of `load`: the files read so far and the problems found in them."""

    def __init__(self) -> None:
        self.sources: dict[str, str] = {}
        self.paths: dict[str, Path] = {}
        self.merged: dict[tuple[Path, bool], Tree] = {}
        self.problems: list[Problem] = []
        self.broken = False  # a layer is lost, so what the rest says about keys is not trustworthy
        self.no_setup = True

    def run(
        self, typed: str, setup: str | None, sets: Sequence[str], layers: Sequence[Tree]
    ) -> Loaded:
        path = find(typed)
        tree = self.file(path, is_setup=False, chain=[])
        if tree is not None:
            tree = self.with_setup(tree, setup)
        for number, text in enumerate(sets, start=1):
            try:
                layer = assignment(text, number)
                if tree is not None:
                    tree = replace(merge(tree, layer), span=tree.span)
            except GrpoError as bad:
                self.fail(bad)
        for layer in layers:
            if tree is not None:
                tree = replace(merge(tree, layer), span=tree.span)
        recipe = None
        if tree is not None and not self.broken:
            absent = SETUP_KEYS | {"setup"} if self.no_setup else frozenset[str]()
            recipe, problems = validate(tree, absent)
            self.problems += problems
        if self.problems or recipe is None or tree is None:
            raise GrpoError(*self.in_file_order())
        origins = {}
        for leaf in leaves(recipe):
            node = tree.get(*leaf.split("."))
            origins[leaf] = "default" if node is None else origin(node.span)
        return Loaded(recipe, origins, self.sources, path.stem, path)

    def with_setup(self, tree: Tree, typed: str | None) -> Tree:
        """The algorithm tree laid over its setup."""
        node = tree.get("setup")
        if typed is not None:
            span = Span("--setup", 1, 1, max(len(typed), 1), typed)
            node = Tree(typed, span, span)
            tree = merge(tree, Tree({"setup": node}, tree.span, tree.key))
        if node is None and self.broken:
            return tree  # the lost layer may have had one
        if node is None:
            message = "the recipe has no `setup`: no model, task or budget"
            hint = f"add `setup: NAME` or use `--setup NAME`; shipped: {_names_of_setups()}"
            self.problems.append(Problem("GR103", message, tree.span, hint))
            return tree
        if not isinstance(node.value, str):
            return tree  # the schema reports it
        try:
            if typed is not None:
                path = find(typed, setup=True)
            else:
                path = self.beside(node.value, node.span, is_setup=True)
        except GrpoError as bad:
            self.problems += bad.problems
            return tree
        base = self.file(path, is_setup=True, chain=[])
        if base is None:
            return tree
        self.no_setup = False
        assert isinstance(base.value, dict)
        keys = {key: value for key, value in base.value.items() if key not in ("summary", "setup")}
        return merge(replace(base, value=keys), tree)

    def file(self, path: Path, *, is_setup: bool, chain: list[Path]) -> Tree | None:
        """The tree of a file laid over what it extends, or None when it cannot be read."""
        full = path.resolve()
        if (full, is_setup) in self.merged:
            return self.merged[full, is_setup]
        try:
            own = self.read(path)
        except GrpoError as bad:
            self.fail(bad)
            return None
        assert isinstance(own.value, dict)
        self.check_keys(own.value, is_setup)
        base: Tree | None = None
        for node in self.parents(own.get("extends")):
            try:
                parent = self.beside(str(node.value), node.span, is_setup=is_setup)
                self.check_chain([*chain, full], parent.resolve(), node.span)
            except GrpoError as bad:
                self.fail(bad)
                continue
            parent_tree = self.file(parent, is_setup=is_setup, chain=[*chain, full])
            if parent_tree is not None:
                base = merge(base, parent_tree)
        keys = {key: value for key, value in own.value.items() if key != "extends"}
        tree = self.merged[full, is_setup] = merge(base, replace(own, value=keys))
        return tree

    def read(self, path: Path) -> Tree:
        shown = self.shown(path)
        text = read_text(path, shown)
        self.sources[shown] = text
        self.paths[shown] = path
        tree, problems = parse(text, shown)
        self.problems += problems
        if not isinstance(tree.value, dict):
            hint = "write `key: value` lines"
            raise error("GR104", "a recipe must be a mapping of keys", span=tree.span, hint=hint)
        return tree

    def shown(self, path: Path) -> str:
        shown = locate.shown_path(path)
        # A person's own recipes/grpo.yaml may stand beside the shipped one of the same name.
        while shown in self.paths and self.paths[shown].resolve() != path.resolve():
            shown = f"shipped/{shown}"
        return shown

    def check_keys(self, entries: dict[str, Tree], is_setup: bool) -> None:
        allowed = SETUP_KEYS if is_setup else ALGORITHM_KEYS
        here, there = ("a setup", "an algorithm") if is_setup else ("an algorithm", "a setup")
        for key, node in entries.items():
            if key in Recipe.model_fields and key not in allowed:
                message = f"`{key}` belongs in {there} file, not in {here} file"
                hint = f"move it to {there} file, or use `--set {key}=…`"
                if key == "setup":
                    hint = "a setup builds on another one with `extends`"
                self.problems.append(Problem("GR109", message, node.key, hint))

    def parents(self, extends: Tree | None) -> list[Tree]:
        if extends is None:
            return []
        nodes = extends.value if isinstance(extends.value, list) else [extends]
        for node in nodes:
            if not isinstance(node.value, str):
                message = "`extends` must be a file name or a list of file names"
                self.fail(error("GR102", message, span=node.span))
        return [node for node in nodes if isinstance(node.value, str)]

    def check_chain(self, chain: list[Path], parent: Path, span: Span) -> None:
        if parent in chain:
            circle = [*chain[chain.index(parent) :], parent]
            shown = " -> ".join(self.shown(path) for path in circle)
            raise error("GR108", f"`extends` goes in a circle: {shown}", span=span)
        if len(chain) > MAX_CHAIN:
            raise error("GR106", f"a chain of more than {MAX_CHAIN} `extends`", span=span)

    def beside(self, ref: str, span: Span, *, is_setup: bool) -> Path:
        """The file that `ref` in another file means: beside that file, else in the data folders."""
        shipped = [locate.setups_dir()] if is_setup else []
        for folder in (self.paths[span.path].parent, *shipped, locate.recipes_dir()):
            for path in (folder / ref, folder / f"{ref}.yaml"):
                if os.path.isfile(path):
                    return path
        names = locate.setup_names() if is_setup else locate.recipe_names()
        what = "setup" if is_setup else "recipe"
        hint = did_you_mean(ref.removesuffix(".yaml"), names) or f"shipped: {', '.join(names)}"
        raise error("GR107", f"no {what} `{ref}`", span=span, hint=hint)

    def fail(self, bad: GrpoError) -> None:
        self.broken = True
        self.problems += bad.problems

    def in_file_order(self) -> list[Problem]:
        order = list(self.sources)

        def place(problem: Problem) -> tuple[int, int, str, int, int]:
            span = problem.span
            if span is None:
                return (2, 0, "", 0, 0)
            if span.path not in order:
                return (1, len(span.path), span.path, span.line, span.column)
            return (0, order.index(span.path), "", span.line, span.column)

        return sorted(dict.fromkeys(self.problems), key=place)


def assignment(text: str, number: int, option: str = "--set") -> Tree:
    """The tree of one `--set a.b=c`: nested mappings down to the value.

    Raises:
        GrpoError: GR111 with the place in the text.
    """
    path = f"{option} #{number}"
    hint = f"write `{option} objective.high=0.3`"

    def bad(message: str, column: int = 1, length: int = 1) -> GrpoError:
        return error("GR111", message, span=Span(path, 1, column, length, text), hint=hint)

    key, equals, value = text.partition("=")
    if not equals:
        raise bad(f"`{option}` needs `KEY=VALUE`", length=max(len(text), 1))
    if not _SET_KEY.fullmatch(key):
        raise bad("the part before `=` must be a dotted key", length=max(len(key), 1))
    if key.split(".")[0] in ("setup", "extends"):
        hint = "use `--setup NAME`" if key.startswith("setup") else "it stands only in files"
        raise bad(f"`{key.split('.')[0]}` cannot be changed with `{option}`", length=len(key))
    if "\n" in value or "\r" in value:
        raise bad("the value must be one line", length=len(text.splitlines()[0]))
    try:
        node, problems = parse(value, path, prefix=f"{key}=")
    except GrpoError as unreadable:
        problems = list(unreadable.problems)
    if problems:
        raise GrpoError(*(replace(problem, code="GR111") for problem in problems))
    column = len(key)
    for part in reversed(key.split(".")):
        column -= len(part)
        span = Span(path, 1, column + 1, len(part), text)
        node = Tree({part: replace(node, key=span)}, span)
        column -= 1
    return node


def _names_of_setups() -> str:
    return ", ".join(locate.setup_names()) or "none"
