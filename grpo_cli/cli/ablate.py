"""`grpo ablate`: arms x seeds, planned, run and judged in one command."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.console import Console

if TYPE_CHECKING:
    from grpo_cli.ablate.plan import Plan

EXAMPLES = """Examples:

  grpo ablate --axis std_norm --seeds 3 --dry-run

  grpo ablate dapo --axis clip --axis loss_norm --design one-at-a-time

  grpo ablate grpo --axis optim.lr=1e-4,3e-4 --arms random_reward,no_op --name lr
"""


def ablate(
    recipe: Annotated[
        str, typer.Argument(help="Name of a shipped recipe, or path of a file.")
    ] = "dapo",
    axes: Annotated[
        list[str] | None,
        typer.Option(
            "--axis",
            metavar="NAME|KEY=A,B",
            help="What varies: a shipped axis, a file, or a recipe key; repeatable.",
        ),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, max=1000, help="Seeds per arm, from 0.")] = 5,
    setup: Annotated[
        str | None, typer.Option(help="Setup to use instead of the recipe's: a name or a path.")
    ] = None,
    sets: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Change one key in every arm; repeatable."),
    ] = None,
    design: Annotated[
        Literal["grid", "one-at-a-time"],
        typer.Option(help="Every combination of the axes, or one change at a time."),
    ] = "grid",
    control: Annotated[
        str | None, typer.Option(metavar="ARM", help="What the others are compared with.")
    ] = None,
    primary: Annotated[
        str, typer.Option(metavar="METRIC@STEP", help="What decides, named before the run.")
    ] = "eval/accuracy@final",
    arms: Annotated[
        str | None,
        typer.Option(metavar="NAMES", help="Sanity arms: random_reward, no_op, or both."),
    ] = None,
    budget: Annotated[
        str | None,
        typer.Option(
            metavar="KIND=N",
            help="steps=N per cell; tokens=N or minutes=N of the whole, by estimate.",
        ),
    ] = None,
    name: Annotated[str | None, typer.Option(help="Default: recipe and axes.")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the plan and write nothing.")
    ] = False,
    max_parallel: Annotated[
        int | None, typer.Option(min=1, help="Most cells that train at the same time.")
    ] = None,
    processes: Annotated[
        int | None,
        typer.Option(min=1, max=256, help="Worker processes on a CPU; default: as measured."),
    ] = None,
    exact: Annotated[
        bool,
        typer.Option("--exact", help="The threads of `grpo train`: its bits for any model."),
    ] = False,
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
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object per step, the comparison last.")
    ] = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Print the ablation's folder and nothing else.")
    ] = False,
) -> None:
    """Train arms x seeds, and compare them. The same command again runs only what is missing."""
    from grpo_cli.ablate.identify import identified
    from grpo_cli.ablate.layout import choose_layout
    from grpo_cli.ablate.plan import Request, make_plan
    from grpo_cli.ablate.show import plan_json, plan_warnings, show_plan
    from grpo_cli.ablate.store import (
        ablation_dir,
        merged,
        plan_hash,
        planned_steps,
    )
    from grpo_cli.prepare import prepare_libraries, store_uri
    from grpo_cli.recipe.plugins import load_plugins
    from grpo_cli.report import render_warnings

    prepare_libraries()
    files = [str(file.resolve()) for file in plugins or ()]
    hashes = load_plugins([Path(file) for file in files])
    request = Request(
        recipe=recipe,
        axes=tuple(axes or ()),
        seeds=seeds,
        setup=setup,
        sets=tuple(sets or ()),
        design=design,
        control=control,
        primary=primary,
        extra_arms=tuple(part.strip() for part in (arms or "").split(",") if part.strip()),
        budget=budget,
        name=name,
        plugins=dict(zip(files, hashes.values(), strict=True)),
    )
    plan = make_plan(
        request, runs_dir, lambda found: planned_steps(ablation_dir(runs_dir, found), budget)
    )
    plan, notes = identified(plan)
    folder = ablation_dir(runs_dir, plan.name)
    plan = merged(folder, plan)
    err = Console(stderr=True, highlight=False)
    if dry_run:
        if as_json:
            typer.echo(json.dumps(plan_json(plan, plan_hash(plan)), indent=2))
            return
        layout = choose_layout(
            plan.arms[0].recipe,
            len(plan.cells),
            runs_dir,
            processes=processes,
            exact=exact,
            measure=False,
        )
        out = Console(highlight=False)
        show_plan(plan, out, [("layout", layout.why), *_standing(plan, folder)])
        render_warnings(plan_warnings(plan), err)
        return
    if not (quiet or as_json):
        show_plan(plan, err, _standing(plan, folder))
        render_warnings(plan_warnings(plan), err)
        for note in notes:
            err.print(note, markup=False, soft_wrap=True)
    uri = store_uri(runs_dir, tracking_uri)
    from grpo_cli.ablate.finish import run_and_show
    from grpo_cli.ablate.run import MAX_PARALLEL, Options

    options = Options(
        root=runs_dir,
        uri=uri,
        command=sys.argv,
        max_parallel=max_parallel or MAX_PARALLEL,
        processes=processes,
        exact=exact,
    )
    style: Literal["live", "plain", "json", "quiet"] = "live" if err.is_terminal else "plain"
    if quiet or as_json:
        style = "json" if as_json else "quiet"
    raise typer.Exit(run_and_show(folder, plan, options, style, err))


def _standing(plan: Plan, folder: Path) -> list[tuple[str, str]]:
    """What of the plan is there already."""
    from grpo_cli.ablate.run import missing_cells

    left = len(missing_cells(folder, plan))
    total = len(plan.cells)
    return [] if left == total else [("there", f"{total - left} of {total} cells are done")]
