"""`grpo advise`: a recipe to start from, with reasons, their sources and what speaks against it."""

from __future__ import annotations

import json
import shutil
import sys
from typing import Annotated

import typer

from grpo_cli.advise.answers import (
    QUESTIONS,
    Answers,
    Arch,
    Precision,
    Question,
    Response,
    Reward,
    Stability,
    TaskKind,
)

EXAMPLES = """Examples:

  grpo advise

  grpo advise --task math --arch moe --response long

  grpo advise --task code --precision fp8 --json
"""


def advise(
    task: Annotated[
        TaskKind | None, typer.Option(case_sensitive=False, help="What the model is asked to do.")
    ] = None,
    arch: Annotated[
        Arch | None, typer.Option(case_sensitive=False, help="Dense, or a mixture of experts.")
    ] = None,
    response: Annotated[
        Response | None,
        typer.Option(case_sensitive=False, help="Answers up to about 1,000 tokens, or longer."),
    ] = None,
    precision: Annotated[
        Precision | None, typer.Option(case_sensitive=False, help="Of the sampler's weights.")
    ] = None,
    reward: Annotated[
        Reward | None,
        typer.Option(case_sensitive=False, help="A score per answer, or for parts of it."),
    ] = None,
    stability: Annotated[
        Stability | None, typer.Option(case_sensitive=False, help="How runs behave so far.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON document on stdout; asks nothing.")
    ] = False,
) -> None:
    """Recommend a recipe, with sources, objections and the ablations to run first.

    In a terminal it asks for what is missing. Otherwise it assumes math, dense, short, bfloat16,
    outcome, calm.
    """
    from grpo_cli.advise.rules import advise as find
    from grpo_cli.advise.text import document, render
    from grpo_cli.recipe.load import load

    given: dict[str, str | None] = {
        "task": task,
        "arch": arch,
        "response": response,
        "precision": precision,
        "reward": reward,
        "stability": stability,
    }
    missing = [q for q in QUESTIONS if given[q.name] is None]
    answered = {name: value for name, value in given.items() if value is not None}
    if missing and not as_json and sys.stdin is not None and sys.stdin.isatty():
        answered |= _ask(missing)
    assumed = [q.name for q in QUESTIONS if q.name not in answered]
    advice = find(Answers(**answered))  # type: ignore[arg-type]  # checked by typer or _choice
    summary = load(advice.recipe).recipe.summary
    if as_json:
        typer.echo(json.dumps(document(advice, summary, assumed), indent=2))
        return
    width = min(shutil.get_terminal_size((100, 24)).columns, 100)
    typer.echo(render(advice, summary, assumed, width))


def _ask(questions: list[Question]) -> dict[str, str]:
    """Answers from the terminal; at the end of input the rest is left to the defaults."""
    answers: dict[str, str] = {}
    for question in questions:
        typer.echo(question.text, err=True)
        for number, (value, meaning) in enumerate(question.choices, start=1):
            typer.echo(f"  {number}  {value:<12} {meaning}", err=True)
        default = question.values.index(question.default) + 1
        while question.name not in answers:
            typer.echo(f"{question.name} [{default}]: ", err=True, nl=False)
            line = sys.stdin.readline()
            if not line:
                typer.echo("\nno more input: the rest is assumed", err=True)
                return answers
            choice = _choice(question, line.strip())
            if choice is None:
                known = f"1 to {len(question.choices)}, or {', '.join(question.values)}"
                typer.echo(f"that is none of the choices: {known}", err=True)
            else:
                answers[question.name] = choice
        typer.echo("", err=True)
    return answers


def _choice(question: Question, typed: str) -> str | None:
    """The choice that a number, a word or the start of one means; nothing typed is the default."""
    if not typed:
        return question.default
    numbers = {str(n): value for n, value in enumerate(question.values, start=1)}
    if typed in numbers:
        return numbers[typed]
    found = [value for value in question.values if value.startswith(typed.lower())]
    return found[0] if len(found) == 1 else None
