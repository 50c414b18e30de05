"""Writing an HTML page to where a person asked for it."""

from __future__ import annotations

from pathlib import Path

import typer

from grpo_cli.errors import error


def write_page(path: Path, page: str) -> None:
    """Write the page, folders included, and say so on standard error.

    Raises:
        GrpoError: GR209 when it cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(page, encoding="utf-8", errors="backslashreplace")
    except OSError as problem:
        raise error(
            "GR209", f"--html {path}: {problem.strerror or problem}", hint="name another file"
        ) from problem
    typer.echo(f"wrote {path}", err=True)
