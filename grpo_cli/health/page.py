"""A run or an ablation as one HTML file: inline SVG, no script, nothing loaded from anywhere.

Every text goes through `safe_text` and the template's autoescape. Nothing on disk is changed.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpo_cli.compare import compare
from grpo_cli.compare.chart import Chart, chart
from grpo_cli.compare.curves import by_step
from grpo_cli.compare.html import findings as comparison_parts
from grpo_cli.compare.html import page_template
from grpo_cli.compare.model import Comparison, RunRecord
from grpo_cli.compare.read import read_run, read_targets
from grpo_cli.compare.tables import seeds_table
from grpo_cli.compare.text import remarks
from grpo_cli.compare.words import is_share
from grpo_cli.errors import GrpoError
from grpo_cli.health.doctor import diagnose
from grpo_cli.health.explain import explain_step
from grpo_cli.health.explained import Explained
from grpo_cli.health.interfaces import INTERFACES, AuditLine, Interface, SeedFinding, audit_lines
from grpo_cli.health.panel import describe
from grpo_cli.health.panel_info import MetricInfo
from grpo_cli.runfiles import eval_steps, read_eval, step_files
from grpo_cli.verify.audit_file import AUDIT_FILE, AuditFile
from grpo_cli.verify.audit_file import read as read_audit

PLAN = "plan.json"
_SHOWN = 3


@dataclass(frozen=True, slots=True)
class Drawn:
    """A curve with what its metric means."""

    metric: str
    chart: Chart
    info: MetricInfo | None


@dataclass(frozen=True, slots=True)
class Said:
    """A completion to look at."""

    right: bool
    place: str
    prompt: str
    reference: str
    text: str
    facts: str


@dataclass(frozen=True, slots=True)
class Part:
    """One interface of an arm or a run: its audit line and its curves."""

    line: AuditLine
    drawn: tuple[Drawn, ...]
    flat: tuple[str, ...]
    """Metrics that never changed, with their value."""


@dataclass(frozen=True, slots=True)
class Section:
    """An arm with its seeds, or a run alone."""

    name: str
    runs: tuple[RunRecord, ...]
    facts: tuple[tuple[str, str], ...]
    parts: tuple[Part, ...]
    audit: AuditFile | None
    audit_rows: tuple[tuple[str, str], ...]
    last: Explained | None
    """The last update of the first seed."""
    trained: tuple[Said, ...]
    held_out: tuple[Said, ...]
    notes: tuple[str, ...]


def page(path: Path) -> str:
    """The page of a run folder, or of the folder of an ablation.

    Raises:
        GrpoError: GR206 when it is neither, GR204 when its record is damaged.
    """
    template = page_template("page.html.j2", Path(__file__).parent)
    if (path / PLAN).is_file():
        sections, comparison, notes = _ablation(path)
        title = f"ablation {path.name}"
    else:
        run = read_run(path)
        sections, comparison, notes = [_section(f"{run.recipe_name}", [run])], None, []
        title = f"run {run.recipe_name}/{run.name}/s{run.seed}"
    return template.render(
        title=title,
        interfaces=INTERFACES,
        sections=sections,
        comparison=comparison,
        notes=notes,
        **({} if comparison is None else _comparison_parts(comparison)),
    )


def _comparison_parts(comparison: Comparison) -> dict[str, Any]:
    curves = [(arm.name, arm.by_step) for arm in comparison.arms]
    metric = comparison.metric
    info = _info(metric)
    drawn = chart(f"{metric} by step", "step", curves, is_share(metric), y_label=_unit(info))
    return {
        **comparison_parts(comparison),
        "overview": drawn,
        "remarks": remarks(comparison),
        "runs": seeds_table(comparison),
    }


def _ablation(folder: Path) -> tuple[list[Section], Comparison | None, list[str]]:
    found = read_targets([str(folder)], folder)
    notes: list[str] = []
    comparison = None
    try:
        comparison = compare(found.runs, found.plans, allow_diff=True)
    except GrpoError as problem:
        # An ablation that has just begun has no score yet; its runs can be looked at.
        notes = [f"no comparison: {p.message}" for p in problem.problems]
    arms: dict[str, list[RunRecord]] = {}
    for run in found.runs:
        arms.setdefault(run.arm or run.name, []).append(run)
    control = next((plan.control for plan in found.plans), None)
    names = sorted(arms, key=lambda name: (name != control, list(arms).index(name)))
    return (
        [_section(name, sorted(arms[name], key=lambda r: r.seed)) for name in names],
        comparison,
        notes,
    )


def _section(name: str, runs: Sequence[RunRecord]) -> Section:
    folder, notes = Path(runs[0].place), list[str]()
    found, unjudged, blind = _diagnosed(runs)
    if unjudged:
        notes.append(f"not judged yet: {'; '.join(f'{what} ({why})' for what, why in unjudged)}")
    audit = None
    if (folder / AUDIT_FILE).is_file():
        try:
            audit = read_audit(folder / AUDIT_FILE)
        except GrpoError as problem:
            notes.append(problem.problems[0].message)
    last = None
    steps = step_files(folder / "rollouts")
    if steps:
        try:
            last = explain_step(folder, steps[-1][0])
        except GrpoError as problem:
            notes.append(problem.problems[0].message)
    lines = audit_lines(runs, found, audit, blind=blind, early=bool(unjudged))
    return Section(
        name=name,
        runs=tuple(runs),
        facts=tuple(_facts(runs)),
        parts=tuple(_part(line, runs) for line in lines),
        audit=audit,
        audit_rows=_audit_rows(folder / AUDIT_FILE) if audit is not None else (),
        last=last,
        trained=tuple(_trained(last)) if last is not None else (),
        held_out=tuple(_held_out(folder, notes)),
        notes=tuple(notes),
    )


def _diagnosed(
    runs: Sequence[RunRecord],
) -> tuple[list[SeedFinding], list[tuple[str, str]], list[str]]:
    """The doctor's findings, each with all seeds that have it; what it could not judge yet; and
    what it could not read."""
    found: dict[str, SeedFinding] = {}
    unjudged: list[tuple[str, str]] = []
    blind: list[str] = []
    for run in runs:
        try:
            diagnosis = diagnose(Path(run.place))
        except GrpoError as problem:
            blind.append(problem.problems[0].message)
            continue
        unjudged += diagnosis.unjudged
        for finding in diagnosis.findings:
            known = found.get(finding.id, SeedFinding(finding, ()))
            worse = finding if finding.severity == "red" else known.finding
            found[finding.id] = SeedFinding(worse, (*known.seeds, run.seed))
    return list(found.values()), list(dict.fromkeys(unjudged)), blind


def _facts(runs: Sequence[RunRecord]) -> list[tuple[str, str]]:
    run = runs[0]
    leaves, known = run.leaves, run.facts
    states = [f"s{r.seed} {r.state}" for r in runs] if len(runs) > 1 else [run.state]
    reasons = [f"s{r.seed}: {r.reason}" for r in runs if r.reason]
    last = run.records[-1] if run.records else None
    tokens = sum(
        r.records[-1].scalars.get("progress/tokens_generated", 0.0) for r in runs if r.records
    )
    rows = [
        ("status", ", ".join(states)),
        ("reason", "; ".join(reasons)),
        ("seeds", ", ".join(str(r.seed) for r in runs)),
        ("steps", f"{last.step if last else 0} of {leaves.get('optim.steps', '?')}"),
        ("sampled", f"{tokens:,.0f} tokens" if tokens else ""),
        ("setup", str(leaves.get("setup", ""))),
        ("model", str(leaves.get("model.id", ""))),
        ("task", str(leaves.get("task.kind", ""))),
        ("verifier", str(leaves.get("verifier.name", ""))),
        ("objective", f"{leaves.get('objective.kind')}, aggregate {leaves.get('aggregate.kind')}"),
        ("engine", known.get("engine", "")),
        ("device", " ".join(known[k] for k in ("device", "gpu") if k in known)),
        ("torch", known.get("torch version", "")),
        ("recipe", run.recipe_hash[:12]),
    ]
    return [(key, value) for key, value in rows if value]


def _part(line: AuditLine, runs: Sequence[RunRecord]) -> Part:
    drawn, flat = [], []
    for metric in _metrics(line.interface, runs):
        series = [run.series(metric) for run in runs]
        values = [value for points in series for _, value in points]
        # A tenth of a permille is less than the line is thick, were it drawn from 0.
        if values and max(values) - min(values) <= 1e-4 * max(map(abs, values)):
            flat.append(f"{metric} {_shown(metric, values[-1])}")
        elif values:
            info = _info(metric)
            picture = chart(
                metric,
                "step",
                [(metric, by_step(runs, metric))],
                is_share(metric),
                y_label=_unit(info),
            )
            if picture.lines:
                drawn.append(Drawn(metric, picture, info))
    return Part(line, tuple(drawn), tuple(flat))


def _metrics(interface: Interface, runs: Sequence[RunRecord]) -> list[str]:
    """The interface's metrics, with every pass@k that was measured."""
    passed = {
        key
        for run in runs
        for record in run.records
        for key in record.scalars
        if key.startswith("eval/pass_at_") and interface.key == "evaluation"
    }
    return list(dict.fromkeys([*interface.metrics, *sorted(passed)]))


def _shown(metric: str, value: float) -> str:
    return f"{value:.1%}" if is_share(metric) else f"{value:.4g}"


def _info(metric: str) -> MetricInfo | None:
    """The panel's entry; None for a metric of another version that it does not know."""
    try:
        return describe(metric)
    except GrpoError:
        return None


def _unit(info: MetricInfo | None) -> str:
    """What stands on the axis; a pure number has nothing."""
    return "" if info is None or info.unit == "1" else info.unit


def _audit_rows(path: Path) -> tuple[tuple[str, str], ...]:
    """What the file says beyond its headline; of a file without it, nothing."""
    tree: Mapping[str, Any] = json.loads(path.read_bytes())
    rows = []
    golds, exploits, lazy = (tree.get(key) for key in ("golds", "exploits", "lazy"))
    if isinstance(golds, dict):
        rows.append(("golds", f"{golds.get('consistent')} of {golds.get('golds')} accepted"))
    if isinstance(exploits, dict) and isinstance(exploits.get("families"), list):
        families = [f for f in exploits["families"] if isinstance(f, dict)]
        paid = [str(f.get("name")) for f in families if f.get("paid")]
        told = f"{len(paid)} of {len(families)} families of tricks are paid"
        rows.append(("exploits", f"{told}: {', '.join(paid)}" if paid else told))
    if isinstance(lazy, list):
        paying = [p for p in lazy if isinstance(p, dict) and isinstance(p.get("reward"), float)]
        top = max(paying, key=lambda p: float(p["reward"]), default=None)
        if top is not None:
            rows.append(("lazy policy", f"{top['reward']:.1%} at most ({top.get('policy')})"))
    if isinstance(tree.get("deterministic"), bool):
        rows.append(("deterministic", "yes" if tree["deterministic"] else "no"))
    return tuple(rows)


def _trained(last: Explained) -> list[Said]:
    """Right and wrong completions of a step, each of another group while there are some."""
    pairs = [(g, s) for g in last.groups for s in g.samples if not math.isnan(s.score)]
    # First one of every group, then the seconds.
    pairs.sort(key=lambda pair: pair[1].sample)
    found = []
    for right in (True, False):
        of_kind = [(g, s) for g, s in pairs if s.right is right]
        first = {g.number: (g, s) for g, s in reversed(of_kind)}
        rest = [(g, s) for g, s in of_kind if first[g.number][1] is not s]
        for g, s in [*(first[n] for n in sorted(first)), *rest][:_SHOWN]:
            facts = [f"reward {s.reward:.3g}", f"{s.length} tokens", str(s.finish)]
            if not math.isnan(s.advantage):
                facts.insert(1, f"advantage {s.advantage:+.3g}")
            if s.parsed is not None:
                facts.append(f"read as {s.parsed}")
            place = f"step {last.step}, group {g.number}, sample {s.sample}"
            found.append(Said(right, place, g.prompt, g.reference, s.completion, ", ".join(facts)))
    return found


def _held_out(folder: Path, notes: list[str]) -> list[Said]:
    steps = eval_steps(folder)
    if not steps:
        return []
    try:
        rows = read_eval(folder, steps[-1])
    except GrpoError as problem:
        notes.append(problem.problems[0].message)
        return []
    found = []
    for right in (True, False):
        of_kind = [r for r in rows if not math.isnan(r.score) and (r.score == 1) is right]
        one_each = {row.question_id: row for row in reversed(of_kind)}
        for row in list(one_each.values())[::-1][:_SHOWN]:
            place = f"step {steps[-1]}, question {row.question_id}, sample {row.sample}"
            facts = f"{row.num_tokens} tokens, {row.finish}, {row.status}"
            found.append(Said(right, place, "", "", row.text, facts))
    return found
