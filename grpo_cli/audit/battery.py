"""The whole audit, in order. Each step says on `note` what it does."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from grpo_cli.audit.bench import Bench
from grpo_cli.audit.cases import Cases, read_cases
from grpo_cli.audit.codecheck import check_code
from grpo_cli.audit.determinism import determinism
from grpo_cli.audit.exploits import text_families
from grpo_cli.audit.generated import generated_rows
from grpo_cli.audit.golds import GoldSet, golds_of_task, spread, top_up, with_choices
from grpo_cli.audit.lazy import guesses, lazy_policies
from grpo_cli.audit.rates import Rate, error_rate, youden
from grpo_cli.audit.relations import relations
from grpo_cli.audit.report import GoldCheck, Headline, KindLine, PolicyLine, Report
from grpo_cli.audit.rows import Ask, Gold, Judged, Row, Stratum, accepted
from grpo_cli.audit.template import Template, find_template
from grpo_cli.audit.timing import Bomb, bombs, speed
from grpo_cli.audit.versus import versus
from grpo_cli.errors import error
from grpo_cli.types import Status, Verdict
from grpo_cli.verify.load import LoadedVerifier

Note = Callable[[str], None]

MAX_GOLDS = 500
"""Most golds that are checked against themselves."""
VARIANT_GOLDS = 200
"""Most golds that variants are made from; 0 of 200 bounds a rate at 1.8 %."""
EXPLOIT_GOLDS = 24
REPEATED_PAIRS = 150
ENOUGH_LABELLED = 30
"""From this many labelled problems on, the person's own completions alone give the FN headline."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What to audit with."""

    cases: Path | None = None
    task: str | None = None
    compare: LoadedVerifier | None = None
    golds: int = VARIANT_GOLDS
    """Most golds that variants are made from."""


def audit(verifier: LoadedVerifier, plan: Plan, note: Note = lambda text: None) -> Report:
    """Run the battery.

    Raises:
        GrpoError: GR211 for cases that cannot be used and when no row gets a verdict, GR205 when
            workers cannot load the verifier or the task cannot be read.
    """
    begun = time.monotonic()
    bundled, labelled = _read_all(verifier, plan)
    golds = _gold_set(plan, [cases for cases in (labelled, bundled) if cases is not None])
    with Bench(verifier, sample_limit_s=verifier.sample_limit_s) as bench:
        report, judged = _run(bench, golds, (bundled, labelled), plan.golds, note)
    if plan.compare is not None:
        note(f"the same rows with {plan.compare.name}")
        with Bench(plan.compare, sample_limit_s=plan.compare.sample_limit_s) as bench:
            # Options are those of the verifier under audit: the other knows nothing of them.
            judged = [item for item in judged if not item.row.options]
            others = _judge([item.row for item in judged], bench)
        report = replace(report, versus=versus(judged, others, plan.compare.name))
    return replace(report, seconds=time.monotonic() - begun)


def _read_all(verifier: LoadedVerifier, plan: Plan) -> tuple[Cases | None, Cases | None]:
    own = verifier.path / "cases.jsonl"
    has_own = verifier.source.kind == "folder" and own.is_file()
    bundled = read_cases(own, Stratum.BUNDLED) if has_own else None
    labelled = read_cases(plan.cases, Stratum.LABELLED) if plan.cases else None
    return bundled, labelled


def _gold_set(plan: Plan, found: Sequence[Cases]) -> GoldSet:
    """The task's golds; without a task those of the person's cases, then the bundled ones."""
    if plan.task is not None:
        return golds_of_task(plan.task, MAX_GOLDS)
    golds = found[0].golds if found else ()
    distinct = tuple({gold.reference: gold for gold in reversed(golds)}.values())[::-1]
    if found and any(gold.question for gold in golds):
        distinct = golds  # each question is a problem of its own
    source = f"{len(distinct)} golds of the cases" if distinct else "no golds of yours"
    return GoldSet(distinct[:MAX_GOLDS], source)


def _run(
    bench: Bench,
    golds: GoldSet,
    cases: tuple[Cases | None, Cases | None],
    variant_golds: int,
    note: Note,
) -> tuple[Report, list[Judged]]:
    bundled, labelled = cases
    verifier = bench.verifier
    kind = verifier.kind
    sources = [with_choices(gold) for gold in golds.golds]
    note(f"golds against themselves ({golds.source})")
    pool = [with_choices(g) for g in spread(top_up(sources, kind), variant_golds)]
    template = find_template(verifier.answer, sources or pool, bench)
    check, unusable = check_golds(sources, template, bench)
    pool = [gold for gold in pool if gold.reference not in unusable]
    note("labelled cases")
    judged = [item for some in (labelled, bundled) if some for item in _judge(some.rows, bench)]
    rows = generated_rows(pool, template, kind)
    note(f"{len(rows)} variants of {len(pool)} golds")
    judged += _judge(rows, bench)
    mute = [item.verdict for item in judged if item.verdict.missing]
    if judged and len(mute) == len(judged):
        raise error(
            "GR211",
            f"the verifier gave no verdict on any of {len(judged)} rows: {mute[0].detail}",
            hint="call it by hand with one completion and one reference",
            exit_code=3,
        )
    conclusive = _conclusive(pool, template, bench)
    note("relations and degenerate policies")
    related = relations(pool, template, kind, bench)
    lazy = lazy_policies(sources or pool, template, kind, bench)
    note("exploit families")
    few = spread(pool, EXPLOIT_GOLDS)
    with tempfile.TemporaryDirectory() as folder:
        families = text_families(few, template, kind, bench, Path(folder) / "ran")
    measured = speed(bench)
    note("costly answers")
    costly = _bombs(bench, pool, template)
    code = None
    if kind == "code":
        note("attacks on the sandbox")
        code = check_code(bench)
    note("the same questions again")
    pairs = [(item.row.text, item.row.reference) for item in judged if not item.row.options]
    repeats = determinism(bench, _every(pairs, 8 if kind == "code" else REPEATED_PAIRS))
    own = sum(gold.own for gold in pool)
    source = golds.source + (f", {own} of the audit's own for the variants" if own else "")
    report = Report(
        name=verifier.name,
        kind=kind,
        sha256=verifier.sha256,
        options=dict(verifier.source.options),
        convention=verifier.convention,
        sample_limit_s=verifier.sample_limit_s,
        template=template.shown,
        template_guessed=template.guessed,
        gold_source=source,
        task=golds.task,
        golds=check,
        headline=headline(judged),
        lines=tuple(kind_lines(judged)),
        policies=tuple(policy_lines(judged)),
        missing_detail=mute[0].detail if mute else None,
        unlabelled=labelled.unlabelled if labelled else 0,
        relations=tuple(related),
        lazy=tuple(lazy),
        guesses=tuple(guesses(sources or pool, kind, golds.group_size)),
        exploits=tuple(families),
        conclusive=conclusive,
        code=code,
        bombs=tuple(costly),
        repeats=tuple(repeats),
        speed=measured,
        seconds=0.0,
    )
    return report, judged


def check_golds(
    golds: Sequence[Gold], template: Template, ask: Ask
) -> tuple[GoldCheck, frozenset[str]]:
    """Every gold stated as its own answer, and the references that cannot be used at all."""
    pairs: list[tuple[str, str]] = []
    mute = []
    for gold in golds:
        try:
            pairs.append((template.answer(gold.reference), gold.reference))
        except (ValueError, TypeError):
            mute.append(gold.reference)
    # A reference that `answer` refuses may still be good: tests without a solution.
    unreadable = {r for r, v in zip(mute, ask([("", r) for r in mute]), strict=True) if v.missing}
    outcomes: list[tuple[str, str]] = [("unparsable", r) for r in mute if r in unreadable]
    for (_, reference), verdict in zip(pairs, ask(pairs), strict=True):
        outcomes.append((_outcome(verdict), reference))
    names = [name for name, _ in outcomes]
    bad: dict[str, str] = {}
    for name, reference in outcomes:
        if name != "consistent":
            bad.setdefault(name, reference)
    check = GoldCheck(
        golds=len(outcomes),
        consistent=names.count("consistent"),
        unparsable=names.count("unparsable"),
        timeouts=names.count("timeout"),
        unstated=len(mute) - sum(r in unreadable for r in mute),
        examples=tuple(sorted(bad.items())),
    )
    return check, frozenset(r for name, r in outcomes if name == "unparsable")


def _outcome(verdict: Verdict) -> str:
    if accepted(verdict):
        return "consistent"
    if verdict.status in (Status.ERROR, Status.UNPARSED):
        return "unparsable"
    return "timeout" if verdict.status is Status.TIMEOUT else "rejected"


def _judge(rows: Sequence[Row], bench: Bench) -> list[Judged]:
    """Every row with its verdict; rows with options of their own go to workers that have them."""
    groups: dict[tuple[tuple[str, str], ...], list[int]] = {}
    for index, row in enumerate(rows):
        groups.setdefault(tuple(sorted(row.options.items())), []).append(index)
    verdicts: dict[int, Verdict] = {}
    for options, places in groups.items():
        pairs = [(rows[i].text, rows[i].reference) for i in places]
        verdicts.update(zip(places, bench(pairs, dict(options)), strict=True))
    return [Judged(row, verdicts[i]) for i, row in enumerate(rows)]


def _conclusive(golds: Sequence[Gold], template: Template, ask: Ask) -> bool:
    pairs = []
    for gold in spread(golds, EXPLOIT_GOLDS):
        try:
            pairs.append((template.answer(gold.reference), gold.reference))
        except (ValueError, TypeError):
            continue
    verdicts = ask(pairs)
    return bool(verdicts) and 2 * sum(map(accepted, verdicts)) >= len(verdicts)


def _bombs(bench: Bench, golds: Sequence[Gold], template: Template) -> list[Bomb]:
    """Bombs beside up to four golds that the verifier accepts; none when it accepts none."""
    plain = []
    for gold in spread(golds, 12):
        wrapper = template.wrapper(gold.reference)
        if wrapper is not None:
            plain.append((template.answer(gold.reference), gold.reference, wrapper))
    verdicts = bench([(text, reference) for text, reference, _ in plain])
    good = [item for item, verdict in zip(plain, verdicts, strict=True) if accepted(verdict)][:4]
    if not good:
        return []
    return bombs(bench, good[0][2], [(text, reference) for text, reference, _ in good])


def headline(judged: Sequence[Judged]) -> Headline:
    """FN and FP that stand for the audit.

    FN is about what a model writes: with enough labelled completions of the person they alone
    count; else every problem of every stratum counts once. FP is about what a model could learn to
    write: of the strata the worst one counts, as a policy will find it.
    """
    exact = [item for item in judged if not item.row.policy]
    right = [item for item in exact if item.row.accept]
    labelled = [item for item in right if item.row.stratum is Stratum.LABELLED]
    fn = error_rate(labelled)
    fn_from = str(Stratum.LABELLED)
    if fn.problems < ENOUGH_LABELLED:
        fn = error_rate(right)
        fn_from = _names({item.row.stratum for item in right})
    found: list[tuple[Rate, str]] = []
    for stratum in Stratum:
        rows = [i for i in exact if not i.row.accept and i.row.stratum is stratum]
        if rows:
            found.append((error_rate(rows), str(stratum)))
    fp, fp_from = max(found, key=lambda pair: (pair[0].value, -pair[0].high), default=_NOTHING)
    return Headline(fn, fn_from, fp, fp_from, youden(fn, fp))


_NOTHING: tuple[Rate, str] = (error_rate(()), "nothing")


def _names(strata: set[Stratum]) -> str:
    return " + ".join(str(stratum) for stratum in Stratum if stratum in strata) or "nothing"


def kind_lines(judged: Sequence[Judged]) -> list[KindLine]:
    """One line per stratum, kind and side, in the order of the rows."""
    groups: dict[tuple[Stratum, bool, str], list[Judged]] = {}
    for item in judged:
        if not item.row.policy:
            row = item.row
            groups.setdefault((row.stratum, row.accept, row.kind), []).append(item)
    order = list(Stratum)
    lines = []
    for (stratum, accept, kind), items in sorted(
        groups.items(), key=lambda group: (order.index(group[0][0]), not group[0][1])
    ):
        wrong = next((item for item in items if item.wrong), None)
        lines.append(
            KindLine(
                stratum=stratum,
                kind=kind,
                must_accept=accept,
                accepted=sum(item.accepted for item in items),
                rate=error_rate(items),
                missing=sum(item.verdict.missing for item in items),
                example=wrong.row.id if wrong else None,
                example_text=wrong.row.text[:200] if wrong else None,
            )
        )
    return lines


def policy_lines(judged: Sequence[Judged]) -> list[PolicyLine]:
    """One line per policy kind."""
    groups: dict[tuple[Stratum, str], list[Judged]] = {}
    for item in judged:
        if item.row.policy:
            groups.setdefault((item.row.stratum, item.row.kind), []).append(item)
    return [
        PolicyLine(stratum, kind, sum(item.accepted for item in items), len(items))
        for (stratum, kind), items in groups.items()
    ]


def _every(pairs: Sequence[tuple[str, str]], count: int) -> list[tuple[str, str]]:
    distinct = list(dict.fromkeys(pairs))
    step = max(1, -(-len(distinct) // count))
    return distinct[::step]
