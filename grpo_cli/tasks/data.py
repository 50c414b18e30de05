"""Tasks made of rows: GSM8K, MATH and JSON lines files.

Training questions that also stand in the held-out set are dropped: the two are disjoint by content.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from grpo_cli.errors import error
from grpo_cli.recipe.task_schema import DataTask, Gsm8kTask, JsonlTask, MathTask
from grpo_cli.seeds import seed63
from grpo_cli.tasks.filters import (
    GoldVerifier,
    ambiguous,
    contains_gold,
    gold_problem,
    guess_rate,
)
from grpo_cli.tasks.rows import Columns, Place, Row, read_rows
from grpo_cli.tasks.wording import content_key, turns
from grpo_cli.types import Prompt

FILTERS = ("unparsable", "ambiguous", "contains_gold", "guessable")


@dataclass(slots=True)
class Selection:
    """How the training prompts came about: rows read, and rows dropped by reason, in that order."""

    num_train_rows: int = 0
    num_held_out_rows: int = 0
    dropped: dict[str, int] = field(default_factory=dict)
    contaminated: int = 0
    """Held-out questions that also stood in the training rows."""


class DataSet:
    """A `Task` of rows in memory."""

    def __init__(
        self,
        settings: DataTask,
        train: Sequence[Row],
        held_out: Sequence[Row],
        selection: Selection,
    ) -> None:
        self.settings = settings
        self.size = len(train)
        self.train_rows = tuple(train)
        self.held_out_rows = tuple(held_out)
        self.selection = selection

    def train(self, index: int) -> Prompt:
        """The training prompt at `index`, 0 <= index < size. Raises IndexError outside."""
        if not 0 <= index < self.size:
            raise IndexError(f"train index {index} is not in 0..{self.size - 1}")
        return self.prompt(self.train_rows[index])

    def held_out(self, n: int) -> tuple[Prompt, ...]:
        """The first `n` held-out prompts, in an order made from their content.

        Not the file's order, which may be sorted by subject or level: the first 200 are a fair
        sample of all.

        Raises:
            GrpoError: GR205 when there are fewer than `n`.
        """
        if n > len(self.held_out_rows):
            raise error(
                "GR205",
                f"the {self.settings.kind} task has only {len(self.held_out_rows)} distinct "
                f"held-out questions, {n} were asked for",
                hint="lower eval.num_questions",
            )
        return tuple(self.prompt(row) for row in self.held_out_rows[:n])

    def prompt(self, row: Row) -> Prompt:
        """A row as the recipe words it. The id is of question and gold, not of the wording."""
        content = f"{self.settings.kind}\n{content_key(row.question)}\n{row.gold}"
        meta: dict[str, str | int | float] = {"where": row.where}
        if row.level is not None:
            meta["level"] = row.level
        if row.subject is not None:
            meta["subject"] = row.subject
        if row.num_options is not None:
            meta["num_options"] = row.num_options
        return Prompt(
            id=hashlib.sha256(content.encode("utf-8", "surrogatepass")).hexdigest()[:16],
            messages=turns(row.question, self.settings.asked, self.settings.system),
            reference=row.gold,
            task=self.settings.kind,
            meta=meta,
            self_check=self.settings.self_check_form,
        )


def load_data(settings: DataTask, verifier: GoldVerifier | None, *, train: bool) -> DataSet:
    """Read, split, clean and filter the rows that `settings` name.

    Raises:
        GrpoError: GR205 when rows cannot be had or used, or none is left to train on.
    """
    train_place, eval_place = places(settings, train=train)
    columns = Columns()
    if isinstance(settings, JsonlTask):
        columns = Columns(settings.question, settings.gold)
    selection = Selection()
    rows = read_rows(train_place, columns) if train_place is not None else []
    if eval_place is not None:
        held_out = read_rows(eval_place, columns)
    else:
        assert isinstance(settings, JsonlTask)
        held_out = [row for row in rows if _is_held_out(row, settings)]
        rows = [row for row in rows if not _is_held_out(row, settings)] if train else []
    selection.num_train_rows, selection.num_held_out_rows = len(rows), len(held_out)
    held_out = sorted(_distinct(held_out), key=lambda row: content_key(row.question))
    kept = _select(rows, held_out, settings, verifier, selection)
    if rows and not kept:
        reasons = ", ".join(f"{count} {why}" for why, count in selection.dropped.items())
        raise error(
            "GR205",
            f"no training question is left of {len(rows)}: dropped {reasons}",
            hint="`grpo tasks show` says what each filter finds",
        )
    return DataSet(settings, kept, held_out, selection)


def places(settings: DataTask, *, train: bool = True) -> tuple[Place | None, Place | None]:
    """Where the training rows and the held-out rows are; the second is None when both are in one
    file, the first when it is not wanted and not needed.

    Local files come first; only what is not given as a path comes from the hub.
    """
    if isinstance(settings, JsonlTask):
        if settings.eval_path is not None:
            file = _split_file(settings.eval_path, "test", "task.eval_path")
            held_out = Place("test", file, key="task.eval_path")
        elif Path(settings.path).is_dir():
            held_out = Place("test", _split_file(settings.path, "test", "task.path"))
        else:
            return Place("train", _split_file(settings.path, "train", "task.path")), None
        if not train:
            return None, held_out
        return Place("train", _split_file(settings.path, "train", "task.path")), held_out
    return _train_place(settings) if train else None, _eval_place(settings)


def _train_place(settings: Gsm8kTask | MathTask) -> Place:
    config = "main" if isinstance(settings, Gsm8kTask) else None
    file = None
    if settings.path is not None:
        file = _split_file(settings.path, "train", "task.path")
    return Place("train", file, settings.id, config, settings.revision, "task.path")


def _eval_place(settings: Gsm8kTask | MathTask) -> Place:
    """The held-out rows: `eval_path`, or what lies beside or in `path`, or the hub."""
    file = None
    if settings.eval_path is not None:
        file = _split_file(settings.eval_path, "test", "task.eval_path")
    elif settings.path is not None:
        path = Path(settings.path)
        beside = path.with_name(path.name.replace("train", "test"))
        if path.is_dir():
            file = _split_file(settings.path, "test", "task.eval_path")
        elif beside != path and beside.is_file():
            file = str(beside)
        else:
            raise error(
                "GR205",
                f"task.path is the file {path}, and no test file lies beside it",
                hint="pass it too: --set task.eval_path=FILE",
            )
    if isinstance(settings, Gsm8kTask):
        return Place("test", file, settings.id, "main", settings.revision, "task.eval_path")
    return Place("test", file, settings.eval_id, None, settings.eval_revision, "task.eval_path")


def _split_file(typed: str, split: str, key: str) -> str:
    """The file that a path means: itself, or the one for a split in a folder."""
    path = Path(typed).expanduser()
    if path.is_file():
        return str(path)
    if not path.is_dir():
        raise error("GR205", f"no file or folder `{typed}` ({key})", hint=f"--set {key}=FILE")
    exact = path / f"{split}.jsonl"
    found = [exact] if exact.is_file() else sorted(path.glob(f"*{split}*.jsonl"))
    if len(found) == 1:
        return str(found[0])
    what = f"has {len(found)} files for" if found else "has no file for"
    raise error(
        "GR205",
        f"the folder `{typed}` {what} the {split} split ({key})",
        hint=f"name one `{split}.jsonl`, or pass the file itself",
    )


def _is_held_out(row: Row, settings: JsonlTask) -> bool:
    draw = seed63(settings.split_seed, "held_out", content_key(row.question))
    return draw < settings.held_out_frac * 2**63


def _distinct(rows: Sequence[Row]) -> Iterator[Row]:
    """The first row of every question."""
    seen = set()
    for row in rows:
        key = content_key(row.question)
        if key not in seen:
            seen.add(key)
            yield row


def _select(
    rows: Sequence[Row],
    held_out: Sequence[Row],
    settings: DataTask,
    verifier: GoldVerifier | None,
    selection: Selection,
) -> list[Row]:
    """The rows to train on. A row counts under the first reason that drops it."""
    outside = {content_key(row.question) for row in held_out}
    unclear = ambiguous(rows) if settings.filters.ambiguous else frozenset[str]()
    seen: set[tuple[str, str]] = set()
    leaked: set[str] = set()
    kept = []
    for row in rows:
        key = content_key(row.question)
        reason = None
        if isinstance(settings, MathTask) and not _in_levels(row, settings):
            reason = "at other levels"
        elif key in outside:
            reason = "in the held-out set"
            leaked.add(key)
        elif (key, row.gold) in seen:
            reason = "duplicates"
        elif key in unclear:
            reason = "ambiguous"
        else:
            reason = _filtered(row, settings, verifier)
        if reason is None:
            seen.add((key, row.gold))
            kept.append(row)
        else:
            selection.dropped[reason] = selection.dropped.get(reason, 0) + 1
    selection.contaminated = len(leaked)
    return kept


def _filtered(row: Row, settings: DataTask, verifier: GoldVerifier | None) -> str | None:
    filters = settings.filters
    if filters.max_guess_rate is not None and guess_rate(row) > filters.max_guess_rate:
        return "guessable"
    if filters.contains_gold and contains_gold(row):
        return "contains_gold"
    if filters.unparsable:
        if verifier is None:
            raise ValueError("filters.unparsable needs the recipe's verifier")
        if gold_problem(verifier, row.gold) is not None:
            return "unparsable"
    return None


def _in_levels(row: Row, settings: MathTask) -> bool:
    """Rows without a level pass only when all levels are asked for."""
    if row.level is None:
        return (settings.min_level, settings.max_level) == (1, 5)
    return settings.min_level <= row.level <= settings.max_level
