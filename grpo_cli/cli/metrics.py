"""`grpo metrics`: what every metric of a run means."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from grpo_cli.errors import error

EXAMPLES = """Examples:

  grpo metrics --area exploration

  grpo metrics policy/kl_base eval/pass_at_8

  grpo metrics --json | jq '.metrics[].name'
"""


def _complete(incomplete: str) -> list[str]:
    from grpo_cli.health.panel import PANEL

    return [info.name for info in PANEL if info.name.startswith(incomplete)]


def metrics(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="[NAME]...", help="Only these.", autocompletion=_complete),
    ] = None,
    area: Annotated[
        str | None, typer.Option(metavar="AREA", help="Only this area, such as `exploration`.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
    as_markdown: Annotated[
        bool, typer.Option("--md", help="The page docs/metrics.md, in Markdown.")
    ] = False,
) -> None:
    """Show every metric of a run: definition, unit, why it is there, healthy range."""
    from dataclasses import asdict

    from rich.console import Console

    from grpo_cli.health.panel import markdown, select

    if as_json and as_markdown:
        raise typer.BadParameter("--json and --md exclude each other")
    infos = select(names or (), area)
    if not infos:
        raise error(
            "GR209",
            f"no metric of the area `{area}` is among {', '.join(names or ())}",
            hint="leave out --area",
        )
    if as_json:
        typer.echo(json.dumps({"schema_version": 1, "metrics": [asdict(i) for i in infos]}))
    elif as_markdown:
        typer.echo(markdown(infos), nl=False)
    else:
        from grpo_cli.health.panel_text import panel_text

        Console(highlight=False).print(panel_text(infos), soft_wrap=True)
