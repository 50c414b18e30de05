"""`grpo doctor`: what this machine can run."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

EXAMPLES = """Examples:

  grpo doctor --system

  grpo doctor --system --json
"""


def doctor(
    system: Annotated[
        bool, typer.Option("--system", help="Check this machine: versions, devices, engines.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> None:
    """Check what can go wrong. Exit code 1 when something is."""
    from grpo_cli.prepare import prepare_libraries
    from grpo_cli.report import safe_text
    from grpo_cli.system import canaries, facts

    if not system:
        raise typer.BadParameter("say what to check: --system")
    prepare_libraries()
    err = Console(stderr=True, highlight=False)
    with err.status("looking") as status:
        findings = facts()
        findings += canaries(lambda text: status.update(text))
    if as_json:
        typer.echo(json.dumps({"findings": [asdict(f) for f in findings]}))
    else:
        out = Console(highlight=False)
        for finding in findings:
            mark = {None: " ", True: "ok", False: "FAILED"}[finding.ok]
            line = safe_text(f"{finding.name:<20} {finding.value}  {mark}".rstrip())
            out.print(Text(line), soft_wrap=True)
    raise typer.Exit(int(any(f.ok is False for f in findings)))
