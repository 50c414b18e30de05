"""Rows of a data set: questions with their golds, from JSON lines or from the hub.

`datasets` is imported only when rows come from the hub.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpo_cli.errors import GrpoError, Problem, Span, error
from grpo_cli.hub import hub_or_cache
from grpo_cli.types import Message

QUESTION_COLUMNS = ("question", "prompt", "problem")
GOLD_COLUMNS = ("answer", "ground_truth", "gold", "solution")
_MAX_PROBLEMS = 5
_ROLES = ("system", "user", "assistant")


@dataclass(frozen=True, slots=True)
class Row:
    """One question with its gold. `where` is `file:line`, or the split and index on the hub.

    Example:
        Row(question="What is 2 + 2?", gold="4", where="train.jsonl:1", level=1)
    """

    question: str | tuple[Message, ...]
    gold: str
    where: str
    level: int | None = None
    subject: str | None = None
    num_options: int | None = None
    """Number of choices, where the row says."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where the rows of one split are: a local file, or a split on the hub."""

    split: str
    file: str | None = None
    hub_id: str = ""
    config: str | None = None
    revision: str | None = None
    key: str = "task.path"
    """The recipe key to set when they cannot be had."""


@dataclass(frozen=True, slots=True)
class Columns:
    """Names of the question's and the gold's column; None looks for the usual ones."""

    question: str | None = None
    gold: str | None = None


def read_rows(place: Place, columns: Columns) -> list[Row]:
    """Every row of a split.

    Raises:
        GrpoError: GR205, of a file with the line of each bad row (the first five).
    """
    if place.file is not None:
        return list(_all_good(_from_file(Path(place.file), columns)))
    return list(_all_good(_from_hub(place, columns)))


def _all_good(found: Iterable[Row | Problem]) -> Iterator[Row]:
    problems: list[Problem] = []
    for item in found:
        if isinstance(item, Row):
            yield item
        elif len(problems) < _MAX_PROBLEMS:
            problems.append(item)
    if problems:
        raise GrpoError(*problems)


def _from_file(path: Path, columns: Columns) -> Iterator[Row | Problem]:
    try:
        # Not splitlines(): JSON text may hold line separators that are no line ends of the file.
        lines = path.read_bytes().decode("utf-8-sig").split("\n")
    except OSError as problem:
        raise error("GR205", f"cannot read {path}: {problem.strerror}") from None
    except UnicodeDecodeError:
        raise error("GR205", f"{path} is not UTF-8 text", hint="pass a .jsonl file") from None
    count = 0
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        count += 1
        try:
            fields = json.loads(line)
            if not isinstance(fields, dict):
                raise ValueError("a row must be a JSON object")
            yield to_row(fields, columns, f"{path.name}:{number}")
        except (ValueError, RecursionError) as bad:
            what = f"not JSON: {bad.msg}" if isinstance(bad, json.JSONDecodeError) else str(bad)
            column = bad.colno if isinstance(bad, json.JSONDecodeError) else 1
            yield Problem("GR205", f"{path.name}, line {number}: {what}",
                          Span(str(path), number, column, 1, line))  # fmt: skip
    if not count:
        raise error("GR205", f"{path} has no rows")


def _from_hub(place: Place, columns: Columns) -> Iterator[Row | Problem]:
    try:
        rows = _load_from_hub(place)
    except Exception as problem:  # the library raises a dozen kinds, also bare ones
        first = next(iter(str(problem).strip().splitlines()), type(problem).__name__)
        raise error(
            "GR205",
            f"the {place.split} rows of `{place.hub_id}` are neither here nor available from the "
            f"hub: {first[:300]}",
            hint=f"pass a local JSON lines file: --set {place.key}=FILE",
        ) from None
    for index, fields in enumerate(rows):
        where = f"{place.hub_id} {place.split}[{index}]"
        try:
            yield to_row(fields, columns, where)
        except ValueError as bad:
            yield Problem("GR205", f"{where}: {bad}")


def _load_from_hub(place: Place) -> Iterable[Mapping[str, Any]]:
    import datasets

    with hub_or_cache():
        rows: Iterable[Mapping[str, Any]] = datasets.load_dataset(
            place.hub_id, place.config, split=place.split, revision=place.revision
        )
    return rows


def to_row(fields: Mapping[str, Any], columns: Columns, where: str) -> Row:
    """The row that a JSON object describes.

    Raises:
        ValueError: a column is missing, empty or of the wrong kind.
    """
    question_column = _pick(fields, columns.question, QUESTION_COLUMNS, "question")
    gold_column = _pick(fields, columns.gold, GOLD_COLUMNS, "gold")
    question = _question(fields[question_column], question_column)
    options = _options(fields)
    if options and isinstance(question, str):
        question = _with_options(question, options)
    return Row(
        question=question,
        gold=gold_of(_text(fields[gold_column], gold_column), gold_column),
        where=where,
        level=_level(fields.get("level")),
        subject=_subject(fields),
        num_options=len(options) or None,
    )


def gold_of(text: str, column: str) -> str:
    """The final answer of a gold that may be a worked solution.

    Raises:
        ValueError: a `solution` without a `\\boxed{}`, or nothing left.
    """
    *work, last = re.split(r"(?m)^\s*####", text)
    if work:
        gold = last.strip()
    elif column == "solution" and "\\boxed" in text:
        gold = last_boxed(text) or ""
    elif column == "solution" and "\n" in text.strip():
        raise ValueError("`solution` has several lines, but no `\\boxed{}` with the final answer")
    else:
        gold = text.strip()
    if not gold:
        raise ValueError(f"`{column}` is empty")
    return gold


def last_boxed(text: str) -> str | None:
    """What is inside the last `\\boxed{...}` or `\\fbox{...}`, braces balanced; None without one.

    `\\boxed 5`, which some MATH solutions have, gives `5`.
    """
    found = None
    for match in re.finditer(r"\\(?:boxed|fbox)\s*", text):
        rest = text[match.end() :]
        if not rest.startswith("{"):
            bare = re.match(r"[^\s$\\]+", rest)
            found = bare.group().rstrip(".,") if bare else found
            continue
        depth = 0
        for i, char in enumerate(rest):
            if char in "{}" and (i == 0 or rest[i - 1] != "\\"):
                depth += 1 if char == "{" else -1
            if depth == 0:
                found = rest[1:i].strip()
                break
    return found


def _pick(fields: Mapping[str, Any], wanted: str | None, usual: tuple[str, ...], what: str) -> str:
    if wanted is not None:
        if wanted in fields:
            return wanted
        raise ValueError(f"no column `{wanted}` (task.{what})")
    for name in usual:
        if fields.get(name) is not None:
            return name
    has = ", ".join(map(str, list(fields)[:8])) or "nothing"
    raise ValueError(
        f"no {what} column ({', '.join(usual)}); the row has {has}; name it with task.{what}"
    )


def _question(value: Any, column: str) -> str | tuple[Message, ...]:
    if not isinstance(value, list):
        return _text(value, column).strip()
    messages = []
    for turn in value:
        fits = (
            isinstance(turn, dict)
            and turn.get("role") in _ROLES
            and isinstance(turn.get("content"), str)
        )
        if not fits:
            raise ValueError(f"`{column}` is a list, but not of turns with a role and a content")
        messages.append(Message(turn["role"], turn["content"]))
    if not messages or messages[-1].role != "user":
        raise ValueError(f"the last turn of `{column}` must be the user's")
    return tuple(messages)


def _text(value: Any, column: str) -> str:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, str):
        raise ValueError(f"`{column}` must be text or a number, but is {type(value).__name__}")
    if not value.strip():
        raise ValueError(f"`{column}` is empty")
    return value


def _level(value: Any) -> int | None:
    """5 of `5` and of `Level 5`; None of anything else, such as MATH's `Level ?`."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    number = re.search(r"\d+", value) if isinstance(value, str) else None
    return int(number.group()) if number else None


def _subject(fields: Mapping[str, Any]) -> str | None:
    for name in ("subject", "type"):
        if isinstance(fields.get(name), str):
            return str(fields[name])
    return None


def _options(fields: Mapping[str, Any]) -> list[str]:
    for name in ("options", "choices"):
        value = fields.get(name)
        if isinstance(value, dict):
            value = list(value.values())
        if isinstance(value, list) and value:
            return [_text(option, name).strip() for option in value]
    return []


def _with_options(question: str, options: list[str]) -> str:
    """The question followed by its lettered options, unless it shows them already."""
    if all(option in question for option in options):
        return question
    lettered = (f"{chr(ord('A') + i)}. {option}" for i, option in enumerate(options))
    return "\n".join([question, *lettered])
