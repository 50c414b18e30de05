"""`grpo report`: a run or an ablation as one page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from grpo_cli.cli.page import write_page

EXAMPLES = """Examples:

  grpo report dapo/tiny/s0 --html run.html

  grpo report dapo-std_norm --html ablation.html
"""


def report(
    what: Annotated[
        str,
        typer.Argument(
            metavar="RUN|ABLATION",
            help="A run or an ablation: a folder, an ablation's name, or a part of a run's path.",
        ),
    ],
    html: Annotated[Path, typer.Option(metavar="FILE", help="The page to write.")],
    runs_dir: Annotated[
        Path, typer.Option("--runs-dir", envvar="GRPO_RUNS_DIR", help="Where run folders are.")
    ] = Path("runs"),
) -> None:
    """Write one page on a run or an ablation that opens anywhere: no script, no network."""
    from grpo_cli.cli.runs import resolve
    from grpo_cli.health.page import page

    write_page(html, page(resolve(what, runs_dir)))
