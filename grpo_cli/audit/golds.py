"""Where the golds come from: a task, a file, the labelled cases, or the audit's own.

The audit's own are added when there are fewer than `ENOUGH`: five golds in nine spellings are
forty-five rows and still only five problems. They are never counted as the user's golds.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from grpo_cli.audit.oracle import answer_part, choice_reference, parse_value
from grpo_cli.audit.rows import Gold
from grpo_cli.errors import error
from grpo_cli.types import Prompt

ENOUGH = 60
"""Fewer golds than this are topped up for the generated variants."""
DEFAULT_GROUP = 8
_TASK_KINDS = ("arithmetic", "gsm8k", "math")


@dataclass(frozen=True, slots=True)
class GoldSet:
    """Golds and what is known of where they are from."""

    golds: tuple[Gold, ...]
    source: str
    """For people, such as `task arithmetic (500 held-out questions)`."""
    task: str | None = None
    """The kind of task, as `grpo train` names it."""
    group_size: int = DEFAULT_GROUP


def golds_of_task(name: str, limit: int) -> GoldSet:
    """The golds of a task's held-out questions, at most `limit`.

    Args:
        name: a kind of task (`arithmetic`), the name or path of a setup or recipe (its task and its
            group size), or a JSON lines file with questions and answers.

    Raises:
        GrpoError: GR205 or a recipe error when it cannot be read.
    """
    from grpo_cli.recipe.load import load
    from grpo_cli.recipe.locate import recipe_names, setup_names
    from grpo_cli.recipe.task_schema import AnyTask, ArithmeticTask, Gsm8kTask, JsonlTask, MathTask
    from grpo_cli.tasks import load_task

    group_size = DEFAULT_GROUP
    settings: AnyTask
    if name.endswith(".jsonl"):
        if not Path(name).is_file():
            raise error("GR205", f"no file '{name}' here (--task)")
        settings = JsonlTask(path=name, held_out_frac=1.0)
    elif name in _TASK_KINDS:
        kinds = {"arithmetic": ArithmeticTask, "gsm8k": Gsm8kTask, "math": MathTask}
        settings = kinds[name]()
    elif Path(name).is_file() and Path(name).suffix not in (".yaml", ".yml"):
        raise error(
            "GR205",
            f"--task cannot read '{name}'",
            hint="questions are read from a .jsonl file, setups and recipes from a .yaml file",
        )
    elif name not in (*recipe_names(), *setup_names()) and not Path(name).is_file():
        raise error(
            "GR205",
            f"--task: there is no task, setup, recipe or file '{name}'",
            hint=f"tasks: {', '.join(_TASK_KINDS)}; setups: {', '.join(setup_names())}; or a "
            "JSON lines file",
        )
    else:
        is_recipe = name in recipe_names() or _is_recipe_file(name)
        recipe = load(name).recipe if is_recipe else load("grpo", setup=name).recipe
        settings, group_size = recipe.task, recipe.sampling.group_size
    task = load_task(settings, train=False)
    rows = getattr(task, "held_out_rows", None)
    count = limit if rows is None else min(limit, len(rows))
    golds = tuple(_from_prompt(prompt) for prompt in task.held_out(count))
    shown = Path(name).name if name.endswith(".jsonl") else settings.kind
    return GoldSet(
        golds, f"task {shown}, {len(golds)} held-out questions", settings.kind, group_size
    )


def _is_recipe_file(name: str) -> bool:
    from grpo_cli.recipe.load import is_setup_file

    path = Path(name)
    return path.is_file() and path.suffix in (".yaml", ".yml") and not is_setup_file(path)


def _from_prompt(prompt: Prompt) -> Gold:
    question = prompt.messages[-1].content if prompt.messages else None
    return Gold(prompt.id, prompt.reference, question, choices_in(question or ""))


def choices_in(question: str) -> tuple[str, ...]:
    """The texts of lettered options at the ends of a question's lines, `A: ...` from A on."""
    found = re.findall(r"(?m)^\s*\(?([A-J])[.:)]\s*(.+?)\s*$", question)
    letters = [letter for letter, _ in found]
    expected = [chr(ord("A") + i) for i in range(len(letters))]
    return tuple(text for _, text in found) if len(found) > 1 and letters == expected else ()


def spread(golds: Sequence[Gold], count: int) -> list[Gold]:
    """At most `count` golds at even distances, so that every part of the list is in."""
    if len(golds) <= count:
        return list(golds)
    return [golds[i * len(golds) // count] for i in range(count)]


def top_up(golds: Sequence[Gold], kind: str) -> list[Gold]:
    """The golds for generated variants: distinct ones, with the audit's own when they are few.

    Own golds are added only where most of the user's have a value that the oracle knows: it is then
    sure that the verifier reads such references.
    """
    distinct = list({gold.reference: gold for gold in reversed(golds)}.values())[::-1]
    if len(golds) >= ENOUGH or kind not in _OWN:
        # Of a task every question counts, also when many have the same gold.
        return list(golds)
    letters = kind == "choice"
    known = sum(
        parse_value(answer_part(g.reference), letters=letters) is not None for g in distinct
    )
    if 2 * known < len(distinct):
        return distinct
    taken = {gold.reference for gold in distinct}
    own = [Gold(f"own/{ref}", ref, own=True) for ref in _OWN[kind] if ref not in taken]
    return distinct + own[: max(0, ENOUGH - len(distinct))]


def with_choices(gold: Gold) -> Gold:
    """The gold with the options that its reference or its question lists, if one does."""
    known = choice_reference(gold.reference)
    if known is not None and known[1]:
        return replace(gold, choices=known[1])
    if gold.choices or not gold.question:
        return gold
    return replace(gold, choices=choices_in(gold.question))


_INTEGERS = tuple(
    str(n)
    for n in (
        0, 1, 2, 3, 5, 7, 9, 10, 12, 13, 18, 20, 24, 27, 31, 36, 42, 45, 49, 50, 58, 64, 72, 75,
        81, 96, 99, 100, 101, 120, 128, 144, 150, 199, 215, 250, 256, 360, 401, 512, 625, 750, 999,
        1000, 1001, 1024, 1234, 2048, 2750, 5000, 9999, 10000, 12500, 65536, 100000, 123456,
        1000000, 2500000, -1, -2, -5, -7, -12, -40, -99, -1500,
    )
)  # fmt: skip
_DECIMALS = ("0.5", "2.5", "0.25", "3.75", "12.5", "0.125", "1.2", "-0.5", "99.95", "1250.5")
_FRACTIONS = (
    "\\frac{1}{2}", "\\frac{3}{4}", "\\frac{2}{3}", "-\\frac{5}{6}", "\\frac{7}{3}",
    "\\frac{11}{100}", "\\frac{1}{7}", "\\frac{22}{7}",
)  # fmt: skip
_SHAPES = (
    "(1, 2)", "(0, -3)", "(2, 3, 5)", "\\{1, 2, 3\\}", "[0, 1)", "(-2, 5]", "x^2 - 1", "2x + 3",
    "3x^2 - 5x + 7", "-x^3 + 4x",
)  # fmt: skip
_OWN: dict[str, tuple[str, ...]] = {
    "integer": _INTEGERS,
    "number": (*_INTEGERS[::2], *_DECIMALS, *_INTEGERS[1::2]),
    "math": (*_INTEGERS[::3], *_DECIMALS, *_FRACTIONS, *_SHAPES, *_INTEGERS[1::3]),
    "choice": ("A", "B", "C", "D"),
}
