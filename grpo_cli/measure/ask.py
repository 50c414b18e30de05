"""What `grpo eval` was asked, and the recipe that this comes to.

Everything that decides a score is read off one resolved recipe: a run's own, or that of a setup,
with the options laid over it and `--set` last.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from grpo_cli.errors import GrpoError, error
from grpo_cli.measure.target import Subject
from grpo_cli.policy.source import SHIPPED
from grpo_cli.recipe import locate
from grpo_cli.recipe.load import assignment, load, merge
from grpo_cli.recipe.problems import did_you_mean, validate
from grpo_cli.recipe.schema import ArithmeticTask, Lora, Recipe
from grpo_cli.recipe.yaml_tree import parse

Split = Literal["test", "train"]

TASKS = ("arithmetic", "gsm8k", "math500", "jsonl:FILE", "reasoning_gym/NAME")
"""What `--task` takes besides the names of setups."""

VERIFIER_OF = {"gsm8k": "gsm8k", "math": "math", "reasoning_gym": "reasoning_gym"}
"""The verifier of a kind of task when neither a run, a setup nor `--verifier` names one."""

_MAX_TOKENS = {"arithmetic": 256, "gsm8k": 512, "math": 2048, "jsonl": 512, "reasoning_gym": 1024}
_MEASURED = (
    "setup",
    "model",
    "device",
    "task",
    "verifier",
    "audit",
    "sampling",
    "engine",
    "learner",
    "eval",
)
"""The keys of a recipe that an evaluation reads. The shape of an adapter is the subject's."""


@dataclass(frozen=True, slots=True)
class Ask:
    """The options of one `grpo eval`. None is the run's or the setup's own value."""

    task: str | None = None
    setup: str | None = None
    verifier: str | None = None
    split: Split = "test"
    k: int = 16
    temperature: float | None = None
    max_tokens: int | None = None
    num_questions: int | None = None
    templates: tuple[str, ...] = ()
    seed: int | None = None
    engine: str | None = None
    sets: tuple[str, ...] = ()


def resolve_recipe(subject: Subject, ask: Ask) -> Recipe:
    """The recipe that decides model, task, verifier, sampling and engine.

    Raises:
        GrpoError: GR209 for options that do not fit, GR107 for an unknown setup, GR102 and its
            like for a value that a recipe cannot hold.
    """
    tree = _start(subject, ask)
    own_kind = tree["task"]["kind"]
    if ask.task is not None:
        judges = tree["task"].get("self_check", False)
        _take_task(tree, ask.task, subject, ask)
        # A policy that judges its answers does so whatever it is asked.
        tree["task"]["self_check"] = judges or tree["task"].get("self_check", False)
    if ask.verifier is not None:
        tree["verifier"] = {"name": ask.verifier}
    if ask.engine is not None:
        tree["engine"]["kind"] = ask.engine
    for key, value in (("temperature", ask.temperature), ("max_tokens", ask.max_tokens)):
        if value is not None:
            tree["sampling"][key] = value
    recipe = _validated(tree, ask.sets)
    if recipe.model.id != subject.model.id or recipe.lora != Lora():
        raise error(
            "GR209",
            "--set model.id and --set lora: the target says which model and adapter are measured",
            hint="pass the other model as TARGET, or compare the two with --vs",
        )
    named = ask.verifier is not None or any(
        text.partition("=")[0].strip() in ("verifier", "verifier.name") for text in ask.sets
    )
    if not named and ask.task is not None and ask.task not in locate.setup_names():
        recipe = recipe.model_copy(
            update={"verifier": recipe.verifier.model_copy(update=_verifier(recipe, own_kind, ask))}
        )
    return recipe


def _start(subject: Subject, ask: Ask) -> dict[str, Any]:
    """The recipe before any option: a run's, or a setup's under `grpo`, with the subject's model.

    A run's algorithm does not matter here, so its plug-ins are not needed.
    """
    if subject.tree is not None:
        if ask.setup is not None:
            raise error(
                "GR209",
                f"--setup goes with a model, but {subject.label} is a run with a setup of its own",
                hint="use --task, or --set for single keys",
            )
        return _measured(subject.tree)
    shipped = subject.model.id in SHIPPED
    if ask.setup is None and ask.task is None and not shipped:
        raise error(
            "GR209",
            f"{subject.label} is no run: say what to ask it",
            hint=f"--task {'|'.join(TASKS)}, or --setup NAME ({', '.join(locate.setup_names())})",
        )
    tree = _measured(
        load("grpo", setup=ask.setup or (subject.model.id if shipped else "tiny")).recipe.tree()
    )
    if tree["model"]["id"] != subject.model.id:
        tree["model"] = {"id": subject.model.id, "thinking": tree["model"]["thinking"]}
    if ask.setup is None and not shipped:
        tree["learner"]["dtype"] = "bfloat16"
    return tree


def _measured(tree: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a recipe that is measured, made whole: nothing trains here."""
    rest = {"objective": {"kind": "clip"}, "optim": {"lr": 1e-5, "steps": 1}}
    return {**rest, **{key: tree[key] for key in _MEASURED if key in tree}}


def _take_task(tree: dict[str, Any], name: str, subject: Subject, ask: Ask) -> None:
    """Lay the task that `--task` names over the recipe."""
    plain = subject.tree is None and ask.setup is None
    if name in locate.setup_names() and not (name == "tiny" and not plain):
        setup = load("grpo", setup=name).recipe.tree()
        taken = ("task", "verifier", "sampling", "eval") if plain else ("task", "verifier")
        tree.update({key: setup[key] for key in taken})
        return
    tree["task"] = task = _task_node(name)
    if task["kind"] == "arithmetic" and subject.model.id not in SHIPPED:
        task["answer"] = "boxed"
    if plain and subject.model.id not in SHIPPED:
        tree["sampling"]["max_tokens"] = _MAX_TOKENS[task["kind"]]


def _task_node(name: str) -> dict[str, Any]:
    kind, colon, file = name.partition(":")
    if kind == "jsonl":
        if not file:
            raise error("GR209", "--task jsonl needs a file", hint="write --task jsonl:FILE")
        return {"kind": "jsonl", "path": file, "held_out_frac": 1.0}
    family, slash, data_set = name.partition("/")
    if family == "reasoning_gym":
        if not slash or not data_set:
            raise error(
                "GR209",
                "--task reasoning_gym needs a data set",
                hint="write --task reasoning_gym/NAME, for example reasoning_gym/leg_counting",
            )
        return {"kind": "reasoning_gym", "name": data_set}
    if not colon and name in ("arithmetic", "tiny", "gsm8k"):
        return {"kind": "arithmetic" if name == "tiny" else name}
    if name in ("math500", "math"):
        return {"kind": "math"}
    known = [*TASKS, *locate.setup_names()]
    raise error(
        "GR209",
        f"--task: no task `{name}`",
        hint=did_you_mean(name, known) or f"tasks: {', '.join(known)}",
    )


def _verifier(recipe: Recipe, own_kind: str, ask: Ask) -> dict[str, Any]:
    """Changes to the verifier for a task that was asked by its kind."""
    task = recipe.task
    if isinstance(task, ArithmeticTask):
        name = "gsm8k" if task.answer == "boxed" else "exact_integer"
    elif task.kind in VERIFIER_OF:
        name = VERIFIER_OF[task.kind]
    elif own_kind == task.kind or ask.setup is not None or recipe.verifier.name != "exact_integer":
        return {}
    else:
        raise error(
            "GR209",
            f"--task {ask.task}: which verifier reads its answers?",
            hint="--verifier NAME: gsm8k (numbers), math, choice, or the path of your own",
        )
    return {} if name == recipe.verifier.name else {"name": name, "options": {}}


def _validated(tree: dict[str, Any], sets: Sequence[str]) -> Recipe:
    node, _ = parse(json.dumps(tree, ensure_ascii=False), "the recipe")
    for number, text in enumerate(sets, start=1):
        node = merge(node, assignment(text, number))
    recipe, problems = validate(node)
    if recipe is None:
        raise GrpoError(*problems)
    return recipe


def default_out(root: Path, label: str, digest: str) -> Path:
    """`runs/evals/<target>-<hash>`."""
    slug = "".join(c if c.isalnum() or c in "._@-" else "-" for c in label).strip("-.")[-80:]
    return root / "evals" / f"{slug}-{digest[:8]}"
