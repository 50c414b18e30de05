"""`grpo runs`: list, show and send run folders."""

from __future__ import annotations

import difflib
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from grpo_cli.errors import GrpoError, error
from grpo_cli.rundir import find_runs, read_info, read_metrics, run_state


def _examples(*commands: str) -> str:
    """The end of a help page; an empty line keeps each command on a line of its own."""
    return "\n\n".join(["Examples:", *(f"  grpo runs {command}" for command in commands)])


app = typer.Typer(
    no_args_is_help=True,
    help="List, show, watch and send run folders.",
    epilog=_examples("ls", "show dapo/dapo/s0", "watch dapo-std_norm", "sync", "ui"),
)

ACCURACY = "eval/accuracy"
"""The held-out accuracy that `ls` shows."""

RunsDir = Annotated[
    Path, typer.Option("--runs-dir", envvar="GRPO_RUNS_DIR", help="Where run folders are.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
PLAN = "plan.json"
"""In the folder of an ablation."""
_EITHER_HELP = "A run or an ablation: a folder, an ablation's name, or a part of a run's path."


@app.command("ls", epilog=_examples("ls", "ls --json", "ls -q | grep dapo"))
def list_runs(
    runs_dir: RunsDir = Path("runs"),
    as_json: Json = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print only the paths.")] = False,
) -> None:
    """List every run: its status, newest step, seed and last held-out accuracy."""
    runs = find_runs(runs_dir)
    if quiet:
        for run in runs:
            typer.echo(run)
        return
    rows = [_summary(run) for run in runs]
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
        return
    if not rows:
        typer.echo(f"no runs in {runs_dir}")
        return
    header = ("RUN", "STATUS", "STEP", "SEED", "ACCURACY")
    table = [header] + [
        (
            str(Path(row["path"]).relative_to(runs_dir)),
            row["status"],
            "-" if row["step"] < 0 else str(row["step"]),
            str(row["seed"]),
            "-" if row["accuracy"] is None else f"{row['accuracy']:.3f}",
        )
        for row in rows
    ]
    widths = [max(len(line[i]) for line in table) for i in range(len(header))]
    for line in table:
        cells = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        typer.echo("  ".join(cells).rstrip())


@app.command("show", epilog=_examples("show dapo/dapo/s0", "show dapo-std_norm"))
def show_run(
    run: Annotated[str, typer.Argument(metavar="RUN|ABLATION", help=_EITHER_HELP)],
    runs_dir: RunsDir = Path("runs"),
    as_json: Json = False,
) -> None:
    """Show one run: how it stands and its last metrics. Of an ablation, its plan and its arms."""
    path = resolve(run, runs_dir)
    if (path / PLAN).is_file():
        _show_ablation(path, as_json)
        return
    info = read_info(path)
    records = read_metrics(path)
    checkpoints = sorted(p.name for p in (path / "checkpoints").glob("step-*"))
    facts: dict[str, Any] = {
        "path": str(path),
        **asdict(info),
        "status": run_state(path, info),
        "checkpoints": checkpoints,
        "metrics": {k: _json_number(v) for k, v in records[-1].scalars.items()} if records else {},
    }
    if as_json:
        typer.echo(json.dumps(facts, indent=2))
        return
    metrics = facts.pop("metrics")
    facts["checkpoints"] = ", ".join(checkpoints) or None
    for key, value in facts.items():
        if value is not None:
            typer.echo(f"{key:<12} {_plain(value)}")
    if metrics:
        typer.echo(f"\nmetrics of step {records[-1].step}")
        width = max(len(key) for key in metrics)
        for key, value in sorted(metrics.items()):
            typer.echo(f"  {key:<{width}}  {'nan' if value is None else f'{value:.6g}'}")


@app.command(
    "sync",
    epilog=_examples("sync", "sync dapo-std_norm --tracking-uri http://127.0.0.1:5000"),
)
def sync_runs(
    runs: Annotated[
        list[str] | None, typer.Argument(metavar="[RUN|ABLATION]...", help=_EITHER_HELP)
    ] = None,
    runs_dir: RunsDir = Path("runs"),
    tracking_uri: Annotated[
        str | None,
        typer.Option(
            "--tracking-uri",
            help="An MLflow store; default MLFLOW_TRACKING_URI, then mlflow.db in the runs folder.",
        ),
    ] = None,
) -> None:
    """Send to MLflow what it does not have of some runs, or of all. Safe to repeat."""
    from grpo_cli import track

    named = [resolve(text, runs_dir) for text in runs or ()]
    paths = [run for path in named for run in _runs_of(path)] if runs else find_runs(runs_dir)
    uri = tracking_uri or track.default_uri(runs_dir)
    if not paths:
        typer.echo(f"no runs in {runs_dir}")
        return
    typer.echo(f"to {track.shown_uri(uri)}", err=True)
    for path in paths:
        try:
            result = track.sync(path, uri)
        except GrpoError as problem:
            # A run that is being mirrored right now must not keep the others from being sent.
            if problem.problems[0].code != "GR203":
                raise
            typer.echo(f"{path}: skipped, its mirror is at work")
        else:
            typer.echo(f"{path}: {result.new} steps sent, {result.sent} of {result.total} there")
    for folder in dict.fromkeys(path.parents[1] for path in paths):
        _sync_ablation(folder, uri)


@app.command("watch", epilog=_examples("watch dapo-std_norm", "watch dapo/tiny/s0"))
def watch_run(
    what: Annotated[str, typer.Argument(metavar="RUN|ABLATION", help=_EITHER_HELP)],
    runs_dir: RunsDir = Path("runs"),
) -> None:
    """Show an ablation or a run as it trains, until it ends."""
    from grpo_cli.ablate.lookon import look_on, of_ablation, of_run

    path = resolve(what, runs_dir)
    look_on(of_ablation(path) if (path / PLAN).is_file() else of_run(path))


@app.command("ui", epilog=_examples("ui", "ui --port 8080"))
def show_ui(
    runs_dir: RunsDir = Path("runs"),
    tracking_uri: Annotated[
        str | None,
        typer.Option(
            "--tracking-uri",
            envvar="MLFLOW_TRACKING_URI",
            help="An MLflow database; default mlflow.db in the runs folder.",
        ),
    ] = None,
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port on this machine.")] = 5000,
) -> None:
    """Start MLflow's own pages for the runs on this machine, until Ctrl-C."""
    from grpo_cli.track import serve_ui

    raise typer.Exit(serve_ui(runs_dir, tracking_uri, port))


def resolve_run(text: str, runs_dir: Path, others: Sequence[str] | None = None) -> Path:
    """The run folder that a path or a unique part of one names; `others` names what else it
    could have been.

    Raises:
        GrpoError: GR206 when there is none or more than one.
    """
    if (Path(text) / "run.json").is_file():
        return Path(text)
    names = {run.relative_to(runs_dir).as_posix(): run for run in find_runs(runs_dir)}
    matches = [name for name in names if text.strip("/") in name]
    if len(matches) == 1:
        return names[matches[0]]
    if matches:
        shown = ", ".join(matches[:5]) + (", ..." if len(matches) > 5 else "")
        raise error("GR206", f"{text!r} names {len(matches)} runs", hint=f"choose one of {shown}")
    close = difflib.get_close_matches(text, [*(others or ()), *names], n=1, cutoff=0.4)
    raise error(
        "GR206",
        f"no run{'' if others is None else ' or ablation'} {text!r} in {runs_dir}",
        hint=f"did you mean {close[0]!r}?" if close else "`grpo runs ls` lists what is there",
    )


def resolve(text: str, runs_dir: Path) -> Path:
    """The ablation of this name or folder, otherwise the run that `resolve_run` finds.

    Raises:
        GrpoError: GR206 when there is neither.
    """
    from grpo_cli.ablate.store import ablation_dir, find_ablations

    for folder in (Path(text), ablation_dir(runs_dir, text)):
        if (folder / PLAN).is_file():
            return folder
    return resolve_run(text, runs_dir, [path.name for path in find_ablations(runs_dir)])


def _runs_of(path: Path) -> list[Path]:
    """The run itself, or the runs of an ablation."""
    if not (path / PLAN).is_file():
        return [path]
    return sorted(found.parent for found in path.glob("*/s*-*/run.json"))


def _show_ablation(folder: Path, as_json: bool) -> None:
    from rich.console import Console

    from grpo_cli.ablate.lookon import of_ablation, show_table
    from grpo_cli.ablate.show import plan_json, show_plan
    from grpo_cli.ablate.store import plan_hash, plugin_files, read_plan
    from grpo_cli.recipe.plugins import load_plugins

    load_plugins(plugin_files(folder))
    plan = read_plan(folder)
    if as_json:
        cells = [_summary(folder / cell.run) for cell in plan.cells]
        facts = {**plan_json(plan, plan_hash(plan)), "path": str(folder), "runs": cells}
        typer.echo(json.dumps(facts, indent=2))
        return
    show_plan(plan, Console(highlight=False), [("ablation", str(folder))])
    typer.echo()
    show_table(of_ablation(folder))


def _sync_ablation(folder: Path, uri: str) -> None:
    """Send the plan and the comparison of an ablation; nothing for another folder."""
    from grpo_cli.runlock import is_held

    if (folder / PLAN).is_file() and not is_held(folder):
        from grpo_cli.ablate.mirror import sync_parent

        sync_parent(folder, uri)
        typer.echo(f"{folder}: plan and comparison sent")


def _summary(run: Path) -> dict[str, Any]:
    """One row of `ls`; a run that cannot be read is a row too."""
    try:
        info = read_info(run)
        found = [r.scalars[ACCURACY] for r in read_metrics(run) if ACCURACY in r.scalars]
    except GrpoError:
        return {"path": str(run), "status": "damaged", "step": -1, "seed": None, "accuracy": None}
    return {
        "path": str(run),
        "status": run_state(run, info),
        "step": info.step,
        "seed": info.seed,
        "accuracy": _json_number(found[-1]) if found else None,
    }


def _json_number(value: float) -> float | None:
    return None if value != value else value


def _plain(value: object) -> str:
    """One line without control characters: a reason may quote what a model wrote."""
    return "".join(c if c.isprintable() else " " for c in str(value))
