"""A merged tree -> a `Recipe`, or every problem in it, each with its place and in plain English."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, get_args

from pydantic import ValidationError

from grpo_cli.config import Node
from grpo_cli.errors import Problem, Span
from grpo_cli.recipe.schema import ALGORITHM_KEYS, SETUP_KEYS, Recipe
from grpo_cli.recipe.task_schema import asked_to_judge, read_by_the_model
from grpo_cli.recipe.yaml_tree import JSON, Tree, resolve, show_value

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

Path = tuple[str | int, ...]

_WANTED = {
    "string_type": "text",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "tuple_type": "a list",
    "list_type": "a list",
    "model_type": "a mapping of keys",
    "dict_type": "a mapping of keys",
    "greater_than": "above {gt:g}",
    "greater_than_equal": "at least {ge:g}",
    "less_than": "below {lt:g}",
    "less_than_equal": "at most {le:g}",
    "too_long": "a list of at most {max_length} entries",
}


def did_you_mean(word: str, known: Iterable[str]) -> str | None:
    """A hint with the closest known word, or None."""
    close = difflib.get_close_matches(word, list(known), n=1)
    return f"did you mean `{close[0]}`?" if close else None


def validate(
    tree: Tree, absent: frozenset[str] = frozenset()
) -> tuple[Recipe | None, list[Problem]]:
    """The recipe of a merged tree, or None and its problems, unsorted.

    `absent` are top-level keys that nobody could have set (no setup file was read): that they are
    missing is not reported again.
    """
    plain = asked_to_judge(read_by_the_model(tree.plain()))
    try:
        return Recipe.model_validate_json(json.dumps(plain)), []
    except ValidationError as error:
        details = error.errors(include_url=False)
    problems = list(_translate(details, tree, absent))
    unknown = [_path(d, tree) for d in details if d["type"] == "extra_forbidden"]
    if unknown:
        # pydantic checks how values fit together only in a node without other errors. Without the
        # unknown keys (and nothing else changed) those checks can run.
        for path in unknown:
            _remove(plain, path)
        try:
            Recipe.model_validate_json(json.dumps(plain))
        except ValidationError as error:
            again = error.errors(include_url=False)
            fit = [d for d in again if d["type"] == "value_error"]
            problems += [p for p in _translate(fit, tree, absent) if p not in problems]
    return None, problems


def node_classes(annotation: Any) -> list[type[Node]]:
    """The node classes an annotation allows: one, several for a union of kinds, or none."""
    if isinstance(annotation, type) and issubclass(annotation, Node):
        return [annotation]
    return [cls for arg in get_args(annotation) for cls in node_classes(arg)]


def kind_of(cls: type[Node]) -> str | None:
    """The `kind` that selects a node class, if it has one."""
    field = cls.model_fields.get("kind")
    return None if field is None else str(field.default)


def schema_paths(cls: type[Node] = Recipe) -> Iterator[str]:
    """Every dotted key that some recipe could have."""
    for name, field in cls.model_fields.items():
        yield name
        for child in node_classes(field.annotation):
            yield from (f"{name}.{path}" for path in schema_paths(child))


def _translate(
    details: list[ErrorDetails], tree: Tree, absent: frozenset[str]
) -> Iterator[Problem]:
    by_path: dict[Path, list[ErrorDetails]] = {}
    for detail in details:
        by_path.setdefault(_path(detail, tree), []).append(detail)
    for path, group in by_path.items():
        # Both branches of a union complain; the one that looked inside the value knows more.
        if any(len(path) < len(other) and other[: len(path)] == path != () for other in by_path):
            continue
        kind = group[0]["type"]
        if kind == "missing":
            if path[0] not in absent:
                yield _missing(path, tree)
        elif kind == "extra_forbidden":
            yield _unknown(path, tree)
        elif kind == "union_tag_not_found":
            kinds = ", ".join(f"`{name}`" for name in _words(group[0], "expected_tags", path))
            message = f"`{_dotted(path)}.kind` is missing"
            yield Problem("GR103", message, _key_span(tree, path), f"kinds: {kinds}")
        elif kind == "value_error":
            yield _misfit(path, str(group[0].get("ctx", {}).get("error", group[0]["msg"])), tree)
        else:
            yield _wrong_value(path, group, tree)


def _path(detail: ErrorDetails, tree: Tree) -> Path:
    """The error's place as keys of the tree, without the names of union branches in its loc."""
    path: list[str | int] = []
    node: Tree | None = tree
    at_tag = False
    for i, part in enumerate(detail["loc"]):
        last = i == len(detail["loc"]) - 1
        kind = node.get("kind") if node else None
        if kind is not None and kind.value == part and not last and not at_tag:
            at_tag = True  # the branch of a union of kinds, even when a key has the same name
            continue
        child = node.get(part) if node else None
        if child is not None or (last and detail["type"] == "missing"):
            path.append(part)
            node, at_tag = child, False
    if detail["type"] == "union_tag_invalid":
        path.append("kind")
    return tuple(path)


def _unknown(path: Path, tree: Tree) -> Problem:
    key = str(path[-1])
    parent = tree.get(*path[:-1])
    kind_node = parent.get("kind") if parent and len(path) > 1 else None
    cls = _class_at(path[:-1], tree)
    homes = [name for name in schema_paths() if name.rpartition(".")[2] == key]
    hint = did_you_mean(key, cls.model_fields) if cls else None
    owners = [
        f"`{kind_of(other)}`" for other in _classes_at(path[:-1]) if key in other.model_fields
    ]
    if owners and kind_node is not None:
        hint = (
            f"`{key}` belongs to kind {' and '.join(owners)}; this recipe has "
            f"`{kind_node.value}`, set at {origin(kind_node.span)}"
        )
    elif ":" in key:
        hint = "YAML wants a space after the colon"
    elif key == "<<":
        hint = "YAML merge keys are not supported; use `extends`"
    elif homes:  # right spelling, wrong place: surer than a similar word
        hint = f"did you mean `{homes[0]}`?"
    if hint is None and cls is not None:
        hint = "known keys: " + ", ".join(f"`{name}`" for name in cls.model_fields)
    return Problem("GR101", f"unknown key `{_dotted(path)}`", _key_span(tree, path), hint)


def _missing(path: Path, tree: Tree) -> Problem:
    if isinstance(path[-1], int):
        node = tree.get(*path[:-1])
        message = f"`{_dotted(path[:-1])}` needs at least {path[-1] + 1} entries"
        return Problem("GR102", message, node.span if node else None)
    hint = None
    if len(path) == 1:
        where = "a setup file" if path[0] not in ALGORITHM_KEYS else "an algorithm file"
        if path[0] in SETUP_KEYS & ALGORITHM_KEYS:
            where = "an algorithm file or a setup file"
        hint = f"it is set in {where}"
    span = _key_span(tree, path[:-1] if len(path) > 1 or path[0] in ALGORITHM_KEYS else ("setup",))
    return Problem("GR103", f"`{_dotted(path)}` is missing", span, hint)


def _misfit(path: Path, message: str, tree: Tree) -> Problem:
    """A cross-field error. Its place is the first key that its message names."""
    node = tree.get(*path) or tree
    named = (node.get(*word.split(".")) for word in re.findall(r"[a-z_]+(?:\.[a-z_]+)*", message))
    span = next((n.span for n in named if n is not None), node.span if path else None)
    where = f"`{_dotted(path)}`: " if path else ""
    return Problem("GR110", where + message, span)


def _wrong_value(path: Path, group: list[ErrorDetails], tree: Tree) -> Problem:
    node = tree.get(*path)
    value = node.plain() if node else None
    wanted, words = [], []
    for detail in group:
        if detail["type"] in ("literal_error", "union_tag_invalid"):
            some = _words(detail, "expected", path) or _words(detail, "expected_tags", path)
            words += some
            listed = ", ".join(f"`{word}`" for word in some)
            wanted.append(f"one of {listed}" if len(some) > 1 else listed)
        elif detail["type"] in _WANTED:
            wanted.append(_WANTED[detail["type"]].format(**detail.get("ctx", {})))
        else:
            wanted.append(f"valid ({detail['msg'][:1].lower()}{detail['msg'][1:]})")
    hint = did_you_mean(value, words) if isinstance(value, str) else None
    if path == ("objective", "kind") and hint is None:
        hint = "an objective of your own needs `--plugin FILE`"
    if isinstance(value, str) and "number" in wanted[0] and not isinstance(resolve(value), str):
        hint = "write it without quotes"
    if isinstance(value, float) and value.is_integer() and wanted == ["a whole number"]:
        hint = f"write `{int(value)}`"
    message = f"`{_dotted(path)}` must be {' or '.join(wanted)}, but is {_describe(value)}"
    return Problem("GR102", message, node.span if node else None, hint)


def _words(detail: ErrorDetails, name: str, path: Path) -> list[str]:
    """The allowed words of a literal or of a union of kinds."""
    if detail["type"] == "union_tag_not_found":
        return [kind for cls in _classes_at(path) if (kind := kind_of(cls))]
    return re.findall(r"'([^']*)'", str(detail.get("ctx", {}).get(name, "")))


def _describe(value: JSON) -> str:
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list):
        return "a list"
    if isinstance(value, str):
        return f"the text `{value[:40]}{'…' if len(value) > 40 else ''}`"
    text = show_value(value)
    return text[:40] + ("…" if len(text) > 40 else "")


def _classes_at(path: Path) -> list[type[Node]]:
    """Every class that a node at this place may have."""
    classes: list[type[Node]] = [Recipe]
    for part in path:
        fields = [cls.model_fields[str(part)] for cls in classes if str(part) in cls.model_fields]
        classes = [cls for field in fields for cls in node_classes(field.annotation)]
    return classes


def _class_at(path: Path, tree: Tree) -> type[Node] | None:
    """The class that the tree's own `kind` selects at this place."""
    classes = _classes_at(path)
    kind = tree.get(*path, "kind")
    for cls in classes:
        if len(classes) == 1 or (kind is not None and kind_of(cls) == kind.value):
            return cls
    return None


def _key_span(tree: Tree, path: Path) -> Span | None:
    node = tree.get(*path)
    return None if node is None else node.key or node.span


def _dotted(path: Path) -> str:
    return ".".join(str(part) for part in path)


def _remove(plain: JSON, path: Path) -> None:
    for part in path[:-1]:
        assert isinstance(plain, dict)
        plain = plain[str(part)]
    if isinstance(plain, dict):
        plain.pop(str(path[-1]), None)


def origin(span: Span) -> str:
    """A place as one word: `recipes/dapo.yaml:6`, or `--set #1`."""
    return span.path if span.path.startswith("--") else f"{span.path}:{span.line}"
