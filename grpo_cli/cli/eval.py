"""`grpo eval`: what one checkpoint scores, and how sure that is."""

from __future__ import annotations

import json
import math
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from grpo_cli.cli.train import EngineName
from grpo_cli.errors import error

EXAMPLES = """Examples:

  grpo eval dapo/tiny/s0

  grpo eval dapo/tiny/s0@40 --vs dapo/tiny/s0@0 --k 8

  grpo eval tiny --num-questions 50 --json | jq .policies

  grpo eval ./adapter --task gsm8k --templates boxed,answer_hash,plain

  grpo eval org/model --task jsonl:test.jsonl --verifier math
"""


class SplitName(StrEnum):
    """The choices of `--split`."""

    TEST = "test"
    TRAIN = "train"


def evaluate(
    target: Annotated[
        str,
        typer.Argument(
            metavar="TARGET",
            help="A run or part of its path, RUN@STEP (0 is its base), a checkpoint, adapter or "
            "model folder, a hub id, or `tiny`.",
        ),
    ],
    task: Annotated[
        str | None,
        typer.Option(
            help="arithmetic, gsm8k, math500, jsonl:FILE, reasoning_gym/NAME or a setup's; "
            "default: the run's."
        ),
    ] = None,
    setup: Annotated[
        str | None, typer.Option(metavar="NAME", help="Of a model: whose task and settings to use.")
    ] = None,
    verifier: Annotated[
        str | None, typer.Option(help="What reads the answers; default: the task's own.")
    ] = None,
    split: Annotated[SplitName, typer.Option(help="Held-out or training questions.")] = (
        SplitName.TEST
    ),
    k: Annotated[int, typer.Option("--k", min=1, help="Samples per question.")] = 16,
    temperature: Annotated[float | None, typer.Option(help="Default: the recipe's.")] = None,
    max_tokens: Annotated[
        int | None, typer.Option(min=1, help="Longest answer; default: the recipe's.")
    ] = None,
    num_questions: Annotated[
        int | None, typer.Option(min=1, help="Default: the recipe's, or all of another task.")
    ] = None,
    templates: Annotated[
        list[str] | None,
        typer.Option(
            metavar="A,B,...|TEXT",
            help="Wordings to compare: own, plain, boxed, boxed_only, step_by_step, answer_hash, "
            "answer_first, or a text with {question}. Repeatable.",
        ),
    ] = None,
    vs: Annotated[
        str | None, typer.Option(metavar="OTHER", help="Another target, asked the same.")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(min=0, help="Of the samples; default: the run's, else 0.")
    ] = None,
    engine: Annotated[EngineName | None, typer.Option(help="What samples the answers.")] = None,
    sets: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Change one recipe key; repeatable."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder of the rows; default runs/evals/TARGET-HASH.")
    ] = None,
    runs_dir: Annotated[
        Path, typer.Option(envvar="GRPO_RUNS_DIR", help="Where run folders are.")
    ] = Path("runs"),
    restart: Annotated[
        bool, typer.Option("--restart", help="Sample again; do not use finished rows.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
) -> None:
    """Measure a run, checkpoint, adapter or model: avg@k, pass@k, maj@k with 95 % intervals."""
    from grpo_cli.prepare import prepare_libraries

    if temperature is not None and not (0 < temperature < math.inf):
        raise error(
            "GR209",
            f"--temperature {temperature:g} is not a number above 0",
            hint="sampling has no greedy mode; 0.05 comes close to it",
        )
    prepare_libraries()
    from grpo_cli.cli.runs import resolve_run
    from grpo_cli.measure import show
    from grpo_cli.measure.ask import Ask
    from grpo_cli.measure.rows import write_summary
    from grpo_cli.measure.run import Job, measure
    from grpo_cli.measure.target import Subject, find_subject
    from grpo_cli.report import safe_text

    def find(text: str) -> Subject:
        return find_subject(text, runs_dir, lambda part: resolve_run(part, runs_dir))

    def say(line: str) -> None:
        typer.echo(safe_text(line, None), err=True)

    ask = Ask(
        task=task,
        setup=setup,
        verifier=verifier,
        split="train" if split is SplitName.TRAIN else "test",
        k=k,
        temperature=temperature,
        max_tokens=max_tokens,
        num_questions=num_questions,
        templates=tuple(templates or ()),
        seed=seed,
        engine=engine.value if engine else None,
        sets=tuple(sets or ()),
    )
    other = find(vs) if vs is not None else None
    report = measure(Job(find(target), other, ask, runs_dir, out, restart), say)
    document = json.dumps(show.document(report), indent=2, allow_nan=False)
    write_summary(report.folder, document)
    if as_json:
        typer.echo(document)
    else:
        typer.echo(safe_text(show.text(report), None), nl=False)
