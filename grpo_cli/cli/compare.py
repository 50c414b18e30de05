"""`grpo compare`: arms over seeds, with intervals and plain words."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from grpo_cli.cli.page import write_page
from grpo_cli.errors import error

if TYPE_CHECKING:
    from grpo_cli.compare.model import Plan, RunRecord

EXAMPLES = """Examples:

  grpo compare runs/ablations/std_norm

  grpo compare grpo dapo --baseline grpo --at 200

  grpo compare 'runs/*/*/s*' --metric eval/pass_at_8 --html report.html

  grpo compare mlflow:dapo --json
"""

TargetsArgument = Annotated[
    list[str],
    typer.Argument(
        metavar="TARGET...",
        help="An ablation, run folders, a folder of them, a glob, a part of a run's path, or "
        "mlflow:EXPERIMENT.",
    ),
]


def compare(
    targets: TargetsArgument,
    metric: Annotated[
        str | None,
        typer.Option(help="What to compare; default the plan's primary, else eval/accuracy."),
    ] = None,
    at: Annotated[
        str | None,
        typer.Option(help="`final` (default), a step, or `best-on-val`."),
    ] = None,
    baseline: Annotated[
        str | None, typer.Option(metavar="ARM", help="The control arm, or a part of its name.")
    ] = None,
    group_by: Annotated[
        str,
        typer.Option("--group-by", help="`arm`, `name`, `recipe`, or a recipe key."),
    ] = "arm",
    fail_on: Annotated[
        str | None,
        typer.Option("--fail-on", metavar="worse", help="Exit with 1 when an arm is worse."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
    as_markdown: Annotated[bool, typer.Option("--md", help="Markdown on stdout.")] = False,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also write a page that needs no network.")
    ] = None,
    allow_diff: Annotated[
        bool,
        typer.Option("--allow-diff", help="List differences outside the axis, do not refuse them."),
    ] = False,
    runs_dir: Annotated[
        Path, typer.Option("--runs-dir", envvar="GRPO_RUNS_DIR", help="Where run folders are.")
    ] = Path("runs"),
    tracking_uri: Annotated[
        str | None,
        typer.Option(
            "--tracking-uri",
            help="Store of mlflow: targets; default MLFLOW_TRACKING_URI, then mlflow.db in the "
            "runs folder.",
        ),
    ] = None,
) -> None:
    """Compare arms of training runs: the unit is the training seed, every claim has an interval."""
    from grpo_cli.compare import compare as judge
    from grpo_cli.compare import text

    if as_json and as_markdown:
        raise error("GR209", "--json and --md both write to stdout", hint="choose one")
    if fail_on not in (None, "worse"):
        raise error("GR209", f"--fail-on {fail_on}", hint="the only word is `worse`")
    runs, plans = _read(targets, runs_dir, tracking_uri, metric)
    result = judge(
        runs,
        plans,
        metric=metric,
        at=at,
        baseline=baseline,
        group_by=group_by,
        allow_diff=allow_diff,
    )
    if fail_on and result.direction == "none":
        raise error(
            "GR209",
            f"--fail-on worse: neither direction of {result.metric} is known to be better",
            hint="use a metric such as eval/accuracy",
        )
    if html is not None:
        from grpo_cli.compare.html import as_html

        write_page(html, as_html(result))
    if as_json:
        typer.echo(text.as_json(result))
    else:
        typer.echo((text.as_markdown if as_markdown else text.as_text)(result), nl=False)
    if fail_on and any(arm.verdict == "worse" for arm in result.arms):
        raise typer.Exit(1)


def _read(
    targets: Sequence[str], runs_dir: Path, tracking_uri: str | None, metric: str | None
) -> tuple[list[RunRecord], list[Plan]]:
    from grpo_cli.compare.read import read_targets
    from grpo_cli.compare.score import ACCURACY

    prefix = "mlflow:"
    folders = [target for target in targets if not target.startswith(prefix)]
    runs: list[RunRecord] = []
    plans: list[Plan] = []
    if folders:
        found = read_targets(folders, runs_dir)
        runs, plans = list(found.runs), list(found.plans)
    for target in targets:
        if target.startswith(prefix):
            from grpo_cli.compare.mlflow_store import read_experiment
            from grpo_cli.track import default_uri

            uri = tracking_uri or default_uri(runs_dir)
            found = read_experiment(target.removeprefix(prefix), uri, [metric or ACCURACY])
            known = {run.run_id for run in runs}
            runs += [run for run in found.runs if run.run_id not in known]
            plans += found.plans
    return runs, plans
