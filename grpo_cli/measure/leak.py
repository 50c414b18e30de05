"""Held-out questions that the run trained on. Compares ids, and texts without case and spacing."""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from grpo_cli.errors import GrpoError
from grpo_cli.recipe.schema import Recipe
from grpo_cli.recipe.task_schema import PLACE, AnyTask, DataTask
from grpo_cli.runfiles import damaged, step_files
from grpo_cli.tasks import load_task
from grpo_cli.tasks.data import DataSet
from grpo_cli.tasks.wording import content_key, turns
from grpo_cli.types import Message, Prompt

_ID = re.compile(rb'"prompt_id": "([^"\\]*)"')


@dataclass(frozen=True, slots=True)
class Leak:
    """`count` of `total` held-out questions stand in `where`. `unread` says why nobody could look.

    Example:
        Leak("rollouts", count=3, total=200, where=("rollouts/step-000004.jsonl.gz",))
    """

    source: str
    count: int
    total: int
    where: tuple[str, ...] = ()
    unread: str | None = None


def bare(task: AnyTask) -> AnyTask:
    """The same questions without any wording."""
    return task.model_copy(update={"template": PLACE, "system": None, "self_check": False})


def find_leaks(questions: Sequence[Prompt], run: Path, recipe: Recipe) -> list[Leak]:
    """How many held-out questions the run trained on, by its rollouts and by its training rows.

    Args:
        questions: held-out prompts without any wording.
        run: the run's folder.
        recipe: as the run trained.

    Rollouts or rows that cannot be read are a `Leak` with `unread`.
    """
    texts = {content_key(q.messages): q.id for q in questions}
    worded = {
        content_key(turns(q.messages, recipe.task.asked, recipe.task.system)): q.id
        for q in questions
    }
    ids = {q.id for q in questions}
    found: dict[str, list[str]] = {}
    unread: str | None = None
    try:
        for where, prompt_id, key in _sampled_prompts(run):
            known = prompt_id if prompt_id in ids else worded.get(key)
            if known is not None:
                found.setdefault(known, []).append(where)
    except GrpoError as problem:
        # The scores stand without it.
        unread = problem.problems[0].message
    files = tuple(dict.fromkeys(name for names in found.values() for name in names))
    leaks = [Leak("rollouts", len(found), len(questions), files, unread)]
    if isinstance(recipe.task, DataTask):
        leaks.append(_in_training_rows(texts, recipe.task))
    return leaks


def _sampled_prompts(run: Path) -> Iterator[tuple[str, str, str]]:
    """File, id and content key of every prompt that a step sampled, once a file."""
    keys: dict[str, str] = {}
    for _, path in step_files(run / "rollouts"):
        seen: set[str] = set()
        try:
            with gzip.open(path, "rb") as file:
                for text in file:
                    match = _ID.search(text)
                    prompt_id = match[1].decode() if match else ""
                    if prompt_id in seen:
                        continue
                    seen.add(prompt_id)
                    if prompt_id not in keys:
                        keys[prompt_id] = _key(json.loads(text))
                    yield f"rollouts/{path.name}", prompt_id, keys[prompt_id]
        except (OSError, EOFError, ValueError, KeyError, TypeError, zlib.error) as problem:
            raise damaged(path, f"it cannot be read ({problem})") from problem


def _key(row: Mapping[str, list[dict[str, str]]]) -> str:
    return content_key(tuple(Message(m["role"], m["content"]) for m in row["prompt"]))


def _in_training_rows(texts: Mapping[str, str], task: DataTask) -> Leak:
    source = f"training rows of the {task.kind} task"
    # Which golds can be read takes the verifier, and is no matter of who saw which question.
    filters = task.filters.model_copy(update={"unparsable": False})
    try:
        data = load_task(task.model_copy(update={"filters": filters}))
    except GrpoError as problem:
        return Leak(source, 0, len(texts), unread=problem.problems[0].message)
    assert isinstance(data, DataSet)
    hits = {
        key: row.where for row in data.train_rows if (key := content_key(row.question)) in texts
    }
    files = tuple(dict.fromkeys(where.rpartition(":")[0] or where for where in hits.values()))
    return Leak(source, len(hits), len(texts), files)
