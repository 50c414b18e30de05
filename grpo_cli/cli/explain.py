"""`grpo explain`: why one update was what it was."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from grpo_cli.errors import error

EXAMPLES = """Examples:

  grpo explain dapo/tiny/s0 --step 12

  grpo explain dapo/tiny/s0 --step 12 --group 3

  grpo explain dapo/tiny/s0 --step 12 --worst mismatch

  grpo explain dapo/tiny/s0 --step 12 --json | jq .splits
"""


class Worst(StrEnum):
    """What picks the group to show."""

    MISMATCH = "mismatch"
    LENGTH = "length"
    ADVANTAGE = "advantage"


def explain(
    run: Annotated[
        str, typer.Argument(metavar="RUN", help="A run folder, or a part of a run's path.")
    ],
    step: Annotated[int, typer.Option(metavar="N", min=0, help="The training step, from 1.")],
    group: Annotated[
        int | None,
        typer.Option(metavar="I", min=0, help="Show this group of the step, sample by sample."),
    ] = None,
    worst: Annotated[
        Worst | None,
        typer.Option(
            help="Show the group with the largest mismatch of a token, the longest completion or "
            "the largest advantage."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
    runs_dir: Annotated[
        Path, typer.Option("--runs-dir", envvar="GRPO_RUNS_DIR", help="Where run folders are.")
    ] = Path("runs"),
) -> None:
    """Show why an update was what it was: groups, rewards, advantages, weights, mismatch."""
    from grpo_cli.cli.runs import resolve_run
    from grpo_cli.health import explain_text
    from grpo_cli.health.explain import choose_group, explain_step
    from grpo_cli.health.tokens import decoder

    if group is not None and worst is not None:
        raise error("GR209", "--group and --worst both choose a group", hint="give one of them")
    folder = resolve_run(run, runs_dir)
    found = explain_step(folder, step)
    chosen = group if worst is None else choose_group(found, worst.value)
    if chosen is not None and chosen >= len(found.groups):
        raise error(
            "GR209",
            f"--group {chosen}: step {step} has {len(found.groups)} groups",
            hint=f"name one of 0 to {len(found.groups) - 1}",
        )
    write = explain_text.as_json if as_json else explain_text.as_text
    typer.echo(write(found, decoder(folder), chosen), nl=as_json)
