"""`grpo verify-verifier`: the error rates of a verifier, before it pays a single reward."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from grpo_cli.errors import error

EXAMPLES = """Examples:

  grpo verify-verifier exact_integer --task arithmetic

  grpo verify-verifier reward.py:score --cases labelled.jsonl --html audit.html

  grpo verify-verifier math --task math --gate "fn<=0.05 fp_upper<=0.02 j_lower>=0.85"

  grpo verify-verifier --trl my_rewards:accuracy --task train.jsonl --compare math
"""


def verify_verifier(
    verifier: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME|PATH[:FUNC]",
            help="A shipped verifier, a verifier's folder, or a function in a .py file.",
        ),
    ] = None,
    trl: Annotated[
        str | None, typer.Option(metavar="MODULE:FUNC", help="Audit a TRL reward function.")
    ] = None,
    verl: Annotated[
        str | None, typer.Option(metavar="FILE.py:FUNC", help="Audit a verl `compute_score`.")
    ] = None,
    options: Annotated[
        list[str] | None,
        typer.Option("--option", metavar="KEY=VALUE", help="An option of it; repeatable."),
    ] = None,
    cases: Annotated[
        Path | None,
        typer.Option(help="JSON lines with text, reference, label and, best, question_id."),
    ] = None,
    task: Annotated[
        str | None,
        typer.Option(
            metavar="TASK",
            help="Whose golds to use: arithmetic, a setup, a recipe, or a JSON lines file.",
        ),
    ] = None,
    from_run: Annotated[
        str | None,
        typer.Option(metavar="RUN", help="Write a sheet of a run's completions to label."),
    ] = None,
    runs_dir: Annotated[
        Path, typer.Option(envvar="GRPO_RUNS_DIR", help="Where run folders are.")
    ] = Path("runs"),
    compare: Annotated[
        str | None,
        typer.Option(metavar="OTHER", help="Another verifier on the same rows (McNemar)."),
    ] = None,
    gate: Annotated[
        str | None,
        typer.Option(metavar="EXPR", help='Exit with 1 unless all hold: "fn<=0.05 j_lower>=0.85".'),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also write one self-contained page.")
    ] = None,
    write: Annotated[
        bool, typer.Option("--write", help="Keep the result as audit.json beside the verifier.")
    ] = False,
    golds: Annotated[
        int, typer.Option(min=1, help="Most golds to make variants from; fewer are faster.")
    ] = 200,
    unsafe_no_sandbox: Annotated[
        bool,
        typer.Option(
            "--unsafe-no-sandbox", help="Run model-written programs with limits only (code)."
        ),
    ] = False,
) -> None:
    """Measure a verifier: what it wrongly rejects and accepts, exploits, time, determinism."""
    from grpo_cli.audit.battery import Plan, audit
    from grpo_cli.audit.gate import apply_gate, parse_gate
    from grpo_cli.audit.record import write_record
    from grpo_cli.audit.render import to_html, to_json, to_text
    from grpo_cli.audit.report import figures
    from grpo_cli.audit.tables import tables
    from grpo_cli.recipe.locate import verifiers_dir
    from grpo_cli.verify.load import load_verifier

    if from_run is not None:
        _sheet(from_run, runs_dir)
        return
    terms = parse_gate(gate) if gate is not None else []
    if unsafe_no_sandbox:
        from grpo_cli.verify.sandbox import require_level

        require_level("none")
    target = _target(verifier, trl, verl)
    folder = verifiers_dir()
    subject = load_verifier(target, folder, _options(options or []))
    other = load_verifier(compare, folder) if compare is not None else None
    if html is not None and not html.absolute().parent.is_dir():
        raise error("GR211", f"cannot write {html}: there is no folder {html.parent}")
    report = audit(
        subject, Plan(cases, task, other, golds), lambda text: typer.echo(f"{text} ...", err=True)
    )
    results = apply_gate(terms, figures(report))
    shown = tables(report, results)
    typer.echo(to_json(report, results) if as_json else to_text(shown))
    if html is not None:
        try:
            html.write_text(to_html(shown, report.name), encoding="utf-8")
        except OSError as problem:
            raise error("GR211", f"cannot write {html}: {problem.strerror}") from None
        typer.echo(f"wrote {html}", err=True)
    if write:
        path, changed = write_record(report, subject.source)
        typer.echo(f"{'wrote' if changed else 'unchanged:'} {path}", err=True)
    if not all(result.holds for result in results):
        raise typer.Exit(1)


def _sheet(run: str, runs_dir: Path) -> None:
    """Write the sheet of a run and say how to go on."""
    from grpo_cli.audit.sheet import write_sheet
    from grpo_cli.cli.runs import resolve_run

    path = resolve_run(run, runs_dir)
    target = Path(f"label-{path.parent.name}-{path.name}.jsonl")
    count = write_sheet(path, target)
    typer.echo(target)
    typer.echo(
        f'{count} completions; set "label" to true (should be accepted) or false in each row, '
        f"then: grpo verify-verifier NAME --cases {target}",
        err=True,
    )


def _target(verifier: str | None, trl: str | None, verl: str | None) -> str:
    """What to load; exactly one of the three must be given."""
    given = [
        text
        for text in (verifier, f"trl:{trl}" if trl else None, f"verl:{verl}" if verl else None)
        if text
    ]
    if len(given) != 1:
        raise error(
            "GR211",
            "name one verifier" if given else "no verifier was named",
            hint="pass NAME, FOLDER, FILE.py:FUNC, --trl MODULE:FUNC or --verl FILE.py:FUNC",
        )
    return given[0]


def _options(texts: list[str]) -> dict[str, str]:
    found = {}
    for text in texts:
        key, sign, value = text.partition("=")
        if not sign or not key:
            raise error("GR211", f"--option cannot read '{text}'", hint="write KEY=VALUE")
        found[key.strip()] = value.strip()
    return found
