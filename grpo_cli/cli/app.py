"""The `grpo` command: the Typer app, and the one place where errors become text and exit codes.

Importing this module must import no heavy library, so a command imports what it needs when it runs.
Exit codes: 0 done, 1 the answer is no, 2 usage, recipe or environment, 3 failed at run time, 130
interrupted.
"""

from __future__ import annotations

import os
import platform
import sys
import traceback
from importlib import metadata
from io import TextIOWrapper
from typing import Annotated, NoReturn

import typer

from grpo_cli import __version__
from grpo_cli.cli import (
    ablate,
    advise,
    compare,
    doctor,
    explain,
    metrics,
    recipe,
    report,
    runs,
    tasks,
    train,
    verify_verifier,
)
from grpo_cli.cli import eval as eval_command
from grpo_cli.errors import GrpoError

EXAMPLES = """Examples:

  grpo verify-verifier exact_integer --task arithmetic

  grpo train recipes/dapo.yaml

  grpo ablate --axis std_norm --seeds 3

  grpo doctor runs/dapo/tiny/s0-661aa585

  grpo recipe ls
"""

app = typer.Typer(
    name="grpo",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=EXAMPLES,
)

# One line per command, in the order of a day's work.
app.command("verify-verifier", epilog=verify_verifier.EXAMPLES)(verify_verifier.verify_verifier)
app.command(epilog=train.EXAMPLES)(train.train)
app.command(epilog=ablate.EXAMPLES)(ablate.ablate)
app.command(epilog=compare.EXAMPLES)(compare.compare)
app.command("eval", epilog=eval_command.EXAMPLES)(eval_command.evaluate)
app.command(epilog=doctor.EXAMPLES)(doctor.doctor)
app.command(epilog=explain.EXAMPLES)(explain.explain)
app.command(epilog=report.EXAMPLES)(report.report)
app.command(epilog=metrics.EXAMPLES)(metrics.metrics)
app.command(epilog=advise.EXAMPLES)(advise.advise)
app.add_typer(recipe.app, name="recipe")
app.add_typer(runs.app, name="runs")
app.add_typer(tasks.app, name="tasks")


def _print_version(wanted: bool) -> None:
    if wanted:
        libraries = (f"{name} {_version(name)}" for name in ("torch", "transformers"))
        python = f"python {platform.python_version()}"
        typer.echo(f"grpo {__version__} ({', '.join((python, *libraries))})")
        raise typer.Exit


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print versions."),
    ] = False,
    show_traceback: Annotated[
        bool,
        typer.Option("--traceback", help="Show the traceback of an error (or GRPO_TRACEBACK=1)."),
    ] = False,
) -> None:
    """A laboratory bench for RLVR: train GRPO variants from recipes, with every link on record."""
    if show_traceback:
        os.environ["GRPO_TRACEBACK"] = "1"


def main() -> NoReturn:
    """The console entry: runs the app, shows what went wrong, and always exits."""
    for stream in (sys.stdout, sys.stderr):
        # A terminal that cannot show a character must not end the command.
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    code = 0
    try:
        try:
            app(prog_name="grpo")
        except GrpoError as error:
            code = error.exit_code
            _show(error)
        except KeyboardInterrupt:
            code = 130
        except BrokenPipeError:
            raise
        except Exception:
            # A bug of ours. Python would exit with 1, which here means "the answer is no".
            code = 3
            traceback.print_exc()
        if sys.stdout is not None:  # `>&-` closes it
            sys.stdout.flush()
    except BrokenPipeError:
        # The reader is gone: nothing is left to say, also not at Python's own last flush.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = code or 1
    raise SystemExit(code)


def _show(error: GrpoError) -> None:
    """The error on stderr: a JSON object under `--json`, else text."""
    from rich.console import Console

    from grpo_cli.report import error_json, render_error

    if os.environ.get("GRPO_TRACEBACK", "0") not in ("", "0"):
        traceback.print_exception(error)
    if "--json" in sys.argv:
        typer.echo(error_json(error), err=True)
        return
    # rich keeps bold and underline under NO_COLOR; a log file wants neither.
    plain = bool(os.environ.get("NO_COLOR"))
    render_error(error, Console(stderr=True, color_system=None if plain else "auto"))
