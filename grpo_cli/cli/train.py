"""`grpo train`: one recipe, one seed."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

EXAMPLES = """Examples:

  grpo train recipes/dapo.yaml

  grpo train dapo --seed 1 --set optim.lr=5e-4

  grpo train dr_grpo --json | jq .scalars

  grpo train dapo --setup smollm2-arithmetic --engine vllm
"""


class EngineName(StrEnum):
    """The choices of `--engine`."""

    AUTO = "auto"
    TRANSFORMERS = "transformers"
    VLLM = "vllm"


def train(
    recipe: Annotated[str, typer.Argument(help="Name of a shipped recipe, or path of a file.")],
    setup: Annotated[
        str | None, typer.Option(help="Setup to use instead of the recipe's: a name or a path.")
    ] = None,
    sets: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Change one key; repeatable."),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Run seed: data order, adapter, sampling.")] = 0,
    engine: Annotated[
        EngineName | None,
        typer.Option(help="What samples completions; short for `--set engine.kind=...`."),
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="Name of the run's folder; default: the setup's name.")
    ] = None,
    runs_dir: Annotated[
        Path, typer.Option(envvar="GRPO_RUNS_DIR", help="Where run folders go.")
    ] = Path("runs"),
    tracking_uri: Annotated[
        str | None,
        typer.Option(
            envvar="MLFLOW_TRACKING_URI",
            help="MLflow store to mirror to, or `none`; default: sqlite in the runs folder.",
        ),
    ] = None,
    plugins: Annotated[
        list[Path] | None,
        typer.Option("--plugin", metavar="FILE", help="Python file that defines objectives."),
    ] = None,
    restart: Annotated[
        bool, typer.Option("--restart", help="Begin anew; the old run is set aside.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object per step on standard output.")
    ] = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Print the run's folder and nothing else.")
    ] = False,
) -> None:
    """Train one recipe with one seed. The same command again continues an unfinished run."""
    from grpo_cli.launch import Launch, launch
    from grpo_cli.outcome import exit_code, show_outcome
    from grpo_cli.progress import Progress, Style
    from grpo_cli.recipe.explain import warnings as recipe_warnings
    from grpo_cli.recipe.load import load
    from grpo_cli.recipe.plugins import load_plugins
    from grpo_cli.report import render_warnings

    _prepare_libraries()
    hashes = load_plugins(plugins or ())
    wanted = [*(sets or ()), *([f"engine.kind={engine}"] if engine else ())]
    loaded = load(recipe, setup=setup, sets=wanted)
    for file in plugins or ():
        loaded.sources[str(file)] = file.read_text()
    err = Console(stderr=True, highlight=False)
    style: Style = "live" if err.is_terminal else "plain"
    if quiet or as_json:
        style = "json" if as_json else "quiet"
    if not (quiet or as_json):
        render_warnings(recipe_warnings(loaded.recipe), err)
    job = Launch(
        loaded=loaded,
        plugins=hashes,
        seed=seed,
        name=name or Path(loaded.recipe.setup).stem,
        root=runs_dir,
        command=sys.argv,
        restart=restart,
        tracking_uri=tracking_uri,
    )
    outcome = launch(job, Progress(style, err))
    show_outcome(outcome, style, sys.argv, seed)
    raise typer.Exit(exit_code(outcome))


def _prepare_libraries() -> None:
    from grpo_cli.prepare import prepare_libraries

    prepare_libraries()
