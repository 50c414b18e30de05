"""`grpo doctor`: what is wrong with a run, and what this machine can run."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

EXAMPLES = """Examples:

  grpo doctor dapo/tiny/s0

  grpo doctor dapo/tiny/s0 dapo/tiny/s1 --json

  grpo doctor --system
"""


def doctor(
    runs: Annotated[
        list[str] | None,
        typer.Argument(metavar="[RUN]...", help="Run folders, or unique parts of their paths."),
    ] = None,
    system: Annotated[
        bool, typer.Option("--system", help="Check this machine: versions, devices, engines.")
    ] = False,
    runs_dir: Annotated[
        Path, typer.Option("--runs-dir", envvar="GRPO_RUNS_DIR", help="Where run folders are.")
    ] = Path("runs"),
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> None:
    """Say what is wrong with a run, or with this machine. Exit code 1 when something is."""
    if system == bool(runs):
        raise typer.BadParameter("say what to check: a RUN, or --system")
    if runs:
        raise typer.Exit(_of_runs(runs, runs_dir, as_json))
    raise typer.Exit(_of_system(as_json))


def _of_runs(names: list[str], runs_dir: Path, as_json: bool) -> int:
    """1 when a run has a red finding."""
    from grpo_cli.cli.runs import resolve_run
    from grpo_cli.health.doctor import diagnose
    from grpo_cli.health.show import show
    from grpo_cli.report import JSON_VERSION

    found = [diagnose(resolve_run(name, runs_dir)) for name in names]
    if as_json:
        document = {"schema_version": JSON_VERSION, "runs": [one.as_json() for one in found]}
        typer.echo(json.dumps(document, allow_nan=False))
    else:
        out = Console(highlight=False)
        # In one write: after `| head -1` a second one would fail, and end with the exit code of a
        # red finding.
        with out.capture() as text:
            for number, one in enumerate(found):
                if number:
                    out.print()
                show(one, out)
        typer.echo(text.get(), nl=False, color=True)
    return int(any(one.is_red for one in found))


def _of_system(as_json: bool) -> int:
    """1 when an engine that is installed does not work."""
    from grpo_cli.prepare import prepare_libraries
    from grpo_cli.report import JSON_VERSION, safe_text
    from grpo_cli.system import canaries, facts

    prepare_libraries()
    err = Console(stderr=True, highlight=False)
    with err.status("looking") as status:
        findings = facts()
        findings += canaries(lambda text: status.update(text))
    if as_json:
        document = {"schema_version": JSON_VERSION, "findings": [asdict(f) for f in findings]}
        typer.echo(json.dumps(document))
    else:
        out = Console(highlight=False)
        for finding in findings:
            mark = {None: " ", True: "ok", False: "FAILED"}[finding.ok]
            line = safe_text(f"{finding.name:<20} {finding.value}  {mark}".rstrip())
            out.print(Text(line), soft_wrap=True)
    return int(any(f.ok is False for f in findings))
