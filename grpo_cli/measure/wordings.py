"""Ways to ask the same question: a table of names, and texts of one's own.

The wording alone moves an accuracy by more than many a published gain, so a gain is measured
against the best wording of the base model (see docs/eval.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from grpo_cli.errors import error
from grpo_cli.recipe.problems import did_you_mean
from grpo_cli.recipe.task_schema import BOXED, PLACE, AnyTask, ArithmeticTask

OWN = "own"
"""The name of the task's own wording."""

WORDINGS: dict[str, str] = {
    "plain": PLACE,
    "boxed": BOXED,
    "boxed_only": f"{PLACE}\n\nPut the final answer in \\boxed{{}}.",
    "step_by_step": f"{PLACE}\n\nLet's think step by step.",
    "answer_hash": f"{PLACE}\n\nThink step by step, then write #### and the final answer.",
    "answer_first": f"Answer in \\boxed{{}}, without any explanation.\n\n{PLACE}",
}


@dataclass(frozen=True, slots=True)
class Wording:
    """A name and the user's turn, with `{question}` where the question goes."""

    name: str
    template: str


def own_wording(task: AnyTask) -> Wording:
    """How the task itself asks."""
    return Wording(OWN, task.template)


def parse_wordings(values: Sequence[str], task: AnyTask) -> list[Wording]:
    """The wordings that `--templates` names, in order, each once.

    A value that holds `{question}` is a text; any other is a list of names split at commas.

    Raises:
        GrpoError: GR209 for an unknown name, or a text with the place of the question twice.
    """
    found: dict[str, Wording] = {}
    num_texts = 0
    for value in values:
        if PLACE in value:
            if value.count(PLACE) > 1:
                raise error("GR209", f"--templates: the text holds `{PLACE}` more than once")
            num_texts += 1
            found[value] = Wording(f"text{num_texts}", value.replace("\\n", "\n"))
            continue
        for name in filter(None, (part.strip() for part in value.split(","))):
            found[name] = _named(name, task)
    if not found:
        raise error("GR209", "--templates names none", hint=f"names: {', '.join([OWN, *WORDINGS])}")
    return list(found.values())


def _named(name: str, task: AnyTask) -> Wording:
    if name == OWN:
        return own_wording(task)
    if name not in WORDINGS:
        known = [OWN, *WORDINGS]
        raise error(
            "GR209",
            f"--templates: no template `{name}`",
            hint=did_you_mean(name, known)
            or f"names: {', '.join(known)}; or a text that holds {PLACE}",
        )
    text = WORDINGS[name]
    if isinstance(task, ArithmeticTask) and task.answer == "boxed":
        # `12 + 3` alone is no question for a model that speaks English.
        text = text.replace(PLACE, f"What is {PLACE}?")
    return Wording(name, text)
