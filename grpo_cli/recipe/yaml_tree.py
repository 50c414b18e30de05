"""YAML text -> a tree of plain values that knows where each key and value was written.

Scalars follow the YAML 1.2 core schema: `1e-6` is a number, `no` and `12:30` are strings, `010` is
ten. PyYAML's own resolver follows YAML 1.1 and gets all four wrong, so only its parser is used. The
tree is built in one pass over parser events, without recursion, and counts depth and nodes (aliases
expanded) as it goes: a hostile file ends in one clear error before it costs time or memory. Tags
are refused and nothing in a file is ever run. Must not import the schema.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias, Union

import yaml

from grpo_cli.errors import GrpoError, Problem, Span, error

MAX_BYTES = 100_000
"""Largest recipe file."""
MAX_DEPTH = 32
"""Deepest nesting of mappings and lists, aliases expanded."""
MAX_NODES = 10_000
"""Most keys and values in one file, aliases expanded."""
MAX_DIGITS = 400
"""Longest whole number. Every float64 has fewer digits before its point."""

Scalar: TypeAlias = str | int | float | bool | None
JSON: TypeAlias = Union[Scalar, "list[JSON]", "dict[str, JSON]"]

_INT = re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_INF = re.compile(r"[-+]?\.(inf|Inf|INF)")
_CONSTANTS: dict[str, bool | float | None] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
    **dict.fromkeys((".nan", ".NaN", ".NAN"), float("nan")),
}
_LINE_BREAK = re.compile("\r\n|[\n\r\x85\u2028\u2029]")  # what PyYAML counts as a line break
_BARE = re.compile(r"[A-Za-z_][A-Za-z0-9_./-]*")


@dataclass(frozen=True, slots=True)
class Tree:
    """A value, where it was written, and where its key was when it stands in a mapping.

    Example:
        `lr: 1e-6` -> Tree({"lr": Tree(1e-6, span at 1:5, key at 1:1)}, span at 1:1)
    """

    value: Scalar | list[Tree] | dict[str, Tree]
    span: Span
    key: Span | None = None

    def get(self, *path: str | int) -> Tree | None:
        """The node at `path`, or None."""
        node = self
        for part in path:
            if isinstance(node.value, dict) and part in node.value:
                node = node.value[str(part)]
            elif isinstance(node.value, list) and isinstance(part, int) and part < len(node.value):
                node = node.value[part]
            else:
                return None
        return node

    def plain(self) -> JSON:
        """The value without places."""
        if isinstance(self.value, dict):
            return {key: node.plain() for key, node in self.value.items()}
        if isinstance(self.value, list):
            return [node.plain() for node in self.value]
        return self.value


def read_text(path: Path, shown: str) -> str:
    """The text of a recipe file.

    Raises:
        GrpoError: GR107 if it is missing, a folder, not a plain file or not readable; GR106 if it
            is larger than `MAX_BYTES`; GR104 if it is not UTF-8.
    """
    if path.is_dir():
        raise error("GR107", f"`{shown}` is a folder, not a recipe file")
    if path.exists() and not path.is_file():
        raise error("GR107", f"`{shown}` is not a plain file")
    try:
        with path.open("rb") as handle:
            data = handle.read(MAX_BYTES + 1)
    except OSError as problem:
        raise error("GR107", f"cannot read `{shown}`: {problem.strerror}") from None
    if len(data) > MAX_BYTES:
        raise error("GR106", f"`{shown}` is larger than {MAX_BYTES:,} bytes; no recipe is")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as problem:
        before = data[: problem.start].decode("utf-8-sig", "replace")
        line = len(_LINE_BREAK.findall(before)) + 1
        column = len(_LINE_BREAK.split(before)[-1]) + 1
        text = _LINE_BREAK.split(data.decode("utf-8-sig", "replace"))[line - 1]
        span = Span(shown, line, column, 1, text)
        raise error("GR104", f"`{shown}` is not UTF-8 text", span=span) from None


def parse(text: str, path: str, *, prefix: str = "") -> tuple[Tree, list[Problem]]:
    """The tree of `text`, and the problems that do not stop the reading (duplicate keys).

    `path` is what spans show. `prefix` is text of the same line before `text`; it is shown and
    counted in columns, but not parsed. A duplicate key keeps its first value.

    Raises:
        GrpoError: GR104 for text that is not YAML, has tags, keys that are not strings or more
            than one document; GR106 for text over one of the caps.
    """
    return _Builder(text, path, prefix).build()


@dataclass(slots=True)
class _Open:
    """A mapping or list that is not closed yet."""

    event: yaml.CollectionStartEvent
    items: list[Tree]
    entries: dict[str, Tree]
    key: Tree | None = None
    num_nodes: int = 1
    height: int = 1


class _Builder:
    def __init__(self, text: str, path: str, prefix: str) -> None:
        self.text = text
        self.path = path
        self.prefix = prefix
        self.lines = _LINE_BREAK.split(prefix + text)
        self.open: list[_Open] = []
        self.anchors: dict[str, tuple[Tree, int, int] | None] = {}
        self.problems: list[Problem] = []
        self.root: Tree | None = None

    def build(self) -> tuple[Tree, list[Problem]]:
        # Blanks in place of the prefix make PyYAML count columns from the start of the line.
        blanks = " " * len(self.prefix)
        try:
            loader = yaml.SafeLoader(blanks + self.text)
        except yaml.reader.ReaderError as problem:
            place = (self.prefix + self.text)[: problem.position]
            breaks = _LINE_BREAK.split(place)
            span = self.place(len(breaks) - 1, len(breaks[-1]), 1)
            raise error("GR104", "a control character in a recipe", span=span) from None
        try:
            while loader.check_event():
                self.handle(loader.get_event())  # type: ignore[no-untyped-call]
        except yaml.MarkedYAMLError as problem:
            mark = problem.problem_mark or problem.context_mark
            where = self.place(mark.line, mark.column, 1) if mark else None
            raise error("GR104", f"not readable YAML: {problem.problem}", span=where) from None
        except (ValueError, OverflowError):  # PyYAML's chr() of an escape such as "\U00110000"
            mark = loader.get_mark()
            span = self.place(mark.line, mark.column, 1)
            message = "not readable YAML: no such Unicode character"
            raise error("GR104", message, span=span) from None
        finally:
            loader.dispose()
        if self.root is None:
            self.root = Tree(None, self.place(0, len(self.prefix), 1))
        return self.root, self.problems

    def handle(self, event: yaml.Event) -> None:
        if isinstance(event, yaml.DocumentStartEvent) and self.root is not None:
            raise self.fail("GR104", "more than one YAML document", event)
        if isinstance(event, yaml.AliasEvent):
            self.alias(event)
        elif isinstance(event, yaml.ScalarEvent | yaml.CollectionStartEvent):
            if event.tag is not None:
                hint = f"remove `{event.tag}`"
                raise self.fail("GR104", "YAML tags are not allowed in a recipe", event, hint)
            if event.anchor is not None:
                if event.anchor in self.anchors:
                    raise self.fail("GR104", f"anchor `&{event.anchor}` is defined twice", event)
                self.anchors[event.anchor] = None
            if isinstance(event, yaml.ScalarEvent):
                self.add(event, Tree(self.scalar(event), self.span(event)), 1, 0)
            else:
                self.open.append(_Open(event, [], {}))
                self.check_depth(len(self.open), event)
        elif isinstance(event, yaml.CollectionEndEvent):
            self.close(event)

    def close(self, end: yaml.CollectionEndEvent) -> None:
        top = self.open.pop()
        start = top.event
        is_mapping = isinstance(start, yaml.MappingStartEvent)
        span = self.span(start, end if start.flow_style else start)
        tree = Tree(top.entries if is_mapping else top.items, span)
        self.add(start, tree, top.num_nodes, top.height)

    def alias(self, event: yaml.AliasEvent) -> None:
        if event.anchor not in self.anchors:
            raise self.fail("GR104", f"no anchor `&{event.anchor}` before this alias", event)
        known = self.anchors[event.anchor]
        if known is None:
            raise self.fail("GR104", f"alias `*{event.anchor}` contains itself", event)
        tree, num_nodes, height = known
        self.check_depth(len(self.open) + height, event)
        self.add(event, replace(tree, span=self.span(event), key=None), num_nodes, height)

    def add(self, event: yaml.NodeEvent, tree: Tree, num_nodes: int, height: int) -> None:
        """Hang a finished node into the innermost open mapping or list."""
        if event.anchor is not None and not isinstance(event, yaml.AliasEvent):
            self.anchors[event.anchor] = (tree, num_nodes, height)
        if not self.open:
            self.root = tree
            return
        top = self.open[-1]
        top.num_nodes += num_nodes
        top.height = max(top.height, height + 1)
        if sum(node.num_nodes for node in self.open) > MAX_NODES:
            message = f"more than {MAX_NODES:,} keys and values, aliases expanded"
            raise self.fail("GR106", message, event)
        if isinstance(top.event, yaml.SequenceStartEvent):
            top.items.append(tree)
        elif top.key is None:
            if not isinstance(tree.value, str):
                raise self.fail("GR104", "a key must be a plain string", event, "put it in quotes")
            top.key = tree
        else:
            key, top.key = top.key, None
            name = str(key.value)
            if name in top.entries:
                first = top.entries[name].key
                hint = f"it stands on line {first.line} too" if first else None
                message = f"key `{name}` twice in one mapping"
                self.problems.append(Problem("GR105", message, key.span, hint))
            else:
                top.entries[name] = replace(tree, key=key.span)

    def scalar(self, event: yaml.ScalarEvent) -> Scalar:
        if event.style is None:
            if len(event.value) > MAX_DIGITS and _INT.fullmatch(event.value):
                raise self.fail("GR104", f"a number of more than {MAX_DIGITS} digits", event)
            return resolve(event.value)
        try:
            # JSON writes one character above U+FFFF as two \u escapes; PyYAML leaves them apart.
            return str(event.value).encode("utf-16", "surrogatepass").decode("utf-16")
        except UnicodeDecodeError:
            raise self.fail("GR104", "half of a surrogate pair in a string", event) from None

    def check_depth(self, depth: int, event: yaml.NodeEvent) -> None:
        if depth > MAX_DEPTH:
            raise self.fail("GR106", f"nested more than {MAX_DEPTH} levels deep", event)

    def fail(
        self, code: str, message: str, event: yaml.Event, hint: str | None = None
    ) -> GrpoError:
        return error(code, message, span=self.span(event), hint=hint)

    def span(self, event: yaml.Event, last: yaml.Event | None = None) -> Span:
        start, end = event.start_mark, (last or event).end_mark
        assert start is not None
        assert end is not None
        stop = end.column if end.line == start.line else len(self.line(start.line).rstrip())
        return self.place(start.line, start.column, stop - start.column)

    def place(self, line: int, column: int, length: int) -> Span:
        return Span(self.path, line + 1, column + 1, max(length, 1), self.line(line))

    def line(self, number: int) -> str:
        return self.lines[number] if number < len(self.lines) else ""


def resolve(text: str) -> Scalar:
    """The value of an unquoted scalar by the YAML 1.2 core schema.

    Example:
        1e-6 -> 1e-06, 010 -> 10, 0x1F -> 31, no -> "no", 12:30 -> "12:30", ~ -> None
    """
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    if _INT.fullmatch(text):
        return int(text, 0) if text.startswith(("0o", "0x")) else int(text)
    if _FLOAT.fullmatch(text):
        return float(text)
    if _INF.fullmatch(text):
        return float(text.replace(".", ""))
    return text


def show_value(value: JSON) -> str:
    """One value as YAML that `parse` reads back: a bare word, or JSON."""
    if isinstance(value, str) and _BARE.fullmatch(value) and resolve(value) == value:
        return value
    if isinstance(value, list):
        return "[" + ", ".join(show_value(item) for item in value) + "]"
    if isinstance(value, dict):
        entries = (f"{show_value(key)}: {show_value(item)}" for key, item in value.items())
        return "{" + ", ".join(entries) + "}"
    text = json.dumps(value, ensure_ascii=False)
    # YAML, unlike JSON, allows no raw DEL, C1 or line separator in a string.
    return text if text.isprintable() else json.dumps(value).replace("\x7f", "\\u007f")


def show_tree(tree: dict[str, JSON], indent: int = 0) -> str:
    """A mapping as block YAML that `parse` reads back."""
    lines = []
    for key, value in tree.items():
        head = " " * indent + f"{show_value(key)}:"
        if isinstance(value, dict) and value:
            lines.append(f"{head}\n{show_tree(value, indent + 2)}")
        else:
            lines.append(f"{head} {show_value(value)}")
    return "\n".join(lines)
