"""The only renderer: what a person or a script sees of an error. Must not import torch.

Text that comes from a file, a model, a data set or a verifier is hostile to a terminal: it goes
through `safe_text`, then into a rich `Text`, which parses no markup.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import asdict
from typing import TYPE_CHECKING

from rich.cells import cell_len
from rich.text import Text

from grpo_cli.errors import GrpoError, Problem, Span

if TYPE_CHECKING:
    from rich.console import Console

JSON_VERSION = 1
"""Stands as `schema_version` in every JSON document that the command line writes."""

_MAX_SOURCE_CELLS = 160

_HIDDEN = re.compile(
    "["
    "\x00-\x08\x0b-\x1f"  # C0 except tab and newline: escape sequences, bell, carriage return
    "\x7f-\x9f"  # DEL and C1: 0x9b alone starts an escape sequence
    "\u00ad\u034f\u061c\u180e"  # soft hyphen and other marks of no width
    "\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"  # zero width, line ends, bidi
    "\U0001bca0-\U0001bca3\U0001d173-\U0001d17a"  # shorthand and music controls
    "\ud800-\udfff"  # half a surrogate pair: printing it raises
    "\U000e0000-\U000e007f"  # invisible tags
    "]"
)


def safe_text(s: str, limit: int | None = 2000) -> str:
    """`s` with every character that could move, hide or recolour text made a visible escape.

    At most `limit` characters of `s` are kept (None: all), and what is cut is counted.

    Example:
        "a\\x1b[2J" -> "a\\\\x1b[2J"
    """
    rest = 0 if limit is None else len(s) - limit
    kept = s if rest <= 0 else s[:limit]
    shown = _HIDDEN.sub(_escape, kept)
    return shown if rest <= 0 else f"{shown}… (+{rest} characters)"


def render_error(error: GrpoError, console: Console) -> None:
    """Every problem of an error: code, message, place with a caret, hint."""
    for problem in error.problems:
        _print(console, _problem_text(problem))
    if len(error.problems) > 1:
        _print(console, Text(f"{len(error.problems)} problems"))


def error_json(error: GrpoError) -> str:
    """An error as one JSON object on one line, for `--json`."""
    errors = [asdict(problem) for problem in error.problems]
    return json.dumps(
        {"schema_version": JSON_VERSION, "exit_code": error.exit_code, "errors": errors}
    )


def _escape(match: re.Match[str]) -> str:
    code = ord(match[0])
    return (
        f"\\x{code:02x}"
        if code < 0x100
        else f"\\u{code:04x}"
        if code < 0x10000
        else f"\\U{code:08x}"
    )


def _print(console: Console, text: Text) -> None:
    # Soft wrap: a wrapped source line would tear the caret away from what it points at.
    console.print(text, soft_wrap=True, highlight=False)


def render_warnings(problems: Iterable[Problem], console: Console) -> None:
    """Things that are legal and known to mislead, each in the form of an error."""
    for problem in problems:
        _print(console, _problem_text(problem, "warning", "bold yellow"))


def _problem_text(problem: Problem, word: str = "error", style: str = "bold red") -> Text:
    text = Text()
    text.append(f"{word}[{problem.code}]", style)
    text.append(f": {safe_text(problem.message)}\n", "bold")
    if problem.span is not None:
        _append_span(text, problem.span)
    if problem.hint is not None:
        text.append("\nhint", "bold cyan")
        text.append(f": {safe_text(problem.hint)}\n")
    return text


def _append_span(text: Text, span: Span) -> None:
    is_file = not span.path.startswith("--")
    number = str(span.line) if is_file else ""
    gutter = " " * max(len(number), 1)
    place = f"{span.path}:{span.line}:{span.column}" if is_file else span.path
    before, marked, after = _around(span)
    text.append(f" {gutter}--> ", "cyan")
    text.append(f"{safe_text(place)}\n")
    text.append(f"{gutter} |\n", "cyan")
    text.append(f"{number or gutter} | ", "cyan")
    text.append(f"{before}{marked}{after}\n")
    text.append(f"{gutter} | ", "cyan")
    text.append(" " * cell_len(before) + "^" * max(cell_len(marked), 1) + "\n", "red")


def _around(span: Span) -> tuple[str, str, str]:
    """The source line cut at the marked part, safe to print; of a long line only the middle."""
    line = span.text.rstrip()
    start = span.column - 1
    before, marked, after = (
        line[:start],
        line[start : start + span.length],
        line[start + span.length :],
    )
    if len(line) > _MAX_SOURCE_CELLS:
        before = f"…{before[-40:]}" if len(before) > 40 else before
        marked = f"{marked[:80]}…" if len(marked) > 80 else marked
        after = f"{after[:40]}…" if len(after) > 40 else after
    before, marked, after = (
        safe_text(part.replace("\t", "    "), None) for part in (before, marked, after)
    )
    return before, marked, after
