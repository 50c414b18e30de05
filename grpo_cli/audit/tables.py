"""A report as titled tables of plain text, which the terminal and the HTML page both show."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from grpo_cli.audit.gate import TermResult
from grpo_cli.audit.rates import Rate
from grpo_cli.audit.report import KindLine, Report
from grpo_cli.audit.rows import Stratum

_WHAT = {
    Stratum.LABELLED: "labelled completions (--cases)",
    Stratum.BUNDLED: "the verifier's own cases",
    Stratum.GENERATED: "made from the golds",
}
_MAX_DISAGREEMENTS = 40
_ENOUGH_GOLDS = 20
"""Of fewer golds the most frequent one says nothing about a task."""


@dataclass(frozen=True, slots=True)
class Table:
    """A title, column names (empty: none), rows, and lines of text below."""

    title: str
    header: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    notes: tuple[str, ...] = ()


def percent(share: float) -> str:
    """`1.1 %`; two decimals below a tenth of a per cent; `n/a` for NaN."""
    if math.isnan(share):
        return "n/a"
    value = 100 * share
    return f"{value:.2f} %" if 0 < abs(value) < 0.1 else f"{value:.1f} %"


def shown_rate(rate: Rate) -> str:
    """`1.1 % [0.5, 2.1]`, an upper bound when nothing went wrong, `n/a` without rows."""
    if not rate.measured:
        return "n/a"
    if rate.wrong == 0:
        return f"<= {percent(rate.high)}"
    low, high = (percent(x).removesuffix(" %") for x in (rate.low, rate.high))
    return f"{percent(rate.value)} [{low}, {high}]"


def headline_text(report: Report) -> str:
    """The one line that stands for the audit."""
    head, lazy, golds = report.headline, report.worst_lazy, report.golds
    parts = [
        f"FN {_headline_rate(head.fn)}",
        f"FP {_headline_rate(head.fp)}",
        f"J >= {head.j.low:.2f}" if not math.isnan(head.j.low) else "J n/a",
    ]
    if lazy:
        parts.append(f"lazy-policy {percent(lazy.reward)} (base rate {percent(lazy.base)})")
    parts.append(ceiling(report))
    if report.code:
        attacks = [a for a in report.code.attacks if a.family != "control"]
        through = sum(not a.contained for a in attacks)
        parts.append(f"sandbox {report.code.level}: {through} of {len(attacks)} attacks pass")
    if golds.golds:
        parts.append(
            f"golds {golds.consistent}/{golds.golds} self-consistent, {golds.unparsable} unparsable"
        )
    changed = sum(repeat.changed for repeat in report.repeats)
    parts.append(f"p99 {_seconds(report.speed.p99_s)}, {report.speed.timeouts} timeouts")
    parts.append("deterministic" if not changed else f"NOT deterministic ({changed} changed)")
    return "  ".join(parts)


def ceiling(report: Report) -> str:
    """`ceiling 0 of 27 exploit families`."""
    if not report.exploits:
        return "no exploit family fits"
    if not report.conclusive:
        return "exploits inconclusive (most golds are rejected)"
    return f"ceiling {len(report.passing)} of {len(report.exploits)} exploit families"


def tables(report: Report, gate: Sequence[TermResult] = ()) -> list[Table]:
    """Every part of the report, the headline last."""
    found = [_subject(report), _golds(report)]
    found += [_kinds(report, stratum) for stratum in Stratum]
    found += [_policies(report), _relations(report), _lazy(report), _guesses(report)]
    found += [_exploits(report), _code(report), _bombs(report), _repeats(report), _speed(report)]
    found += [_versus(report), _advice(report), _headline(report), _gate(gate)]
    return [table for table in found if table.rows or table.notes]


def _headline_rate(rate: Rate) -> str:
    shown = shown_rate(rate)
    return f"{shown} (0/{rate.rows})" if rate.measured and rate.wrong == 0 else shown


def _subject(report: Report) -> Table:
    options = ", ".join(f"{k}={v}" for k, v in report.options.items())
    guess = (
        ", a guess: the function defines no answer(reference)" if report.template_guessed else ""
    )
    return Table(
        f"Verifier {report.name}",
        notes=(
            f"kind {report.kind}, sha256 {report.sha256[:12]}"
            + (f", options {options}" if options else ""),
            f"called as {report.convention}, at most {report.sample_limit_s:g} s a sample",
            f"golds: {report.gold_source}",
            f"answer template: {' '.join(report.template.split())}{guess}",
        ),
    )


def _golds(report: Report) -> Table:
    golds = report.golds
    if not golds.golds and not golds.unstated:
        return Table("Golds")
    rejected = golds.golds - golds.consistent - golds.unparsable - golds.timeouts
    notes = [
        f"{golds.consistent}/{golds.golds} accepted, {golds.unparsable} unparsable, "
        f"{rejected} rejected, {golds.timeouts} timeouts"
    ]
    if golds.unstated:
        notes.append(f"{golds.unstated} more have no statement of their own (no solution)")
    notes += [f"{what}: {reference[:120]}" for what, reference in golds.examples]
    return Table("Golds against themselves", notes=tuple(notes))


def _kinds(report: Report, stratum: Stratum) -> Table:
    lines = [line for line in report.lines if line.stratum is stratum]
    notes: tuple[str, ...] = ()
    if stratum is Stratum.LABELLED and report.unlabelled:
        notes = (f"{report.unlabelled} rows without a label were left out",)
    header = ("KIND", "MUST", "PROBLEMS", "ROWS", "ACC/REJ", "ERROR RATE", "NO VERDICT", "EXAMPLE")
    return Table(f"Rows: {_WHAT[stratum]}", header, tuple(_kind(line) for line in lines), notes)


def _kind(line: KindLine) -> tuple[str, ...]:
    rate = line.rate
    return (
        line.kind,
        "accept" if line.must_accept else "reject",
        str(rate.problems),
        str(rate.rows),
        f"{line.accepted}/{rate.rows - line.accepted}",
        f"{'FN' if line.must_accept else 'FP'} {shown_rate(rate)}",
        str(line.missing) if line.missing else "",
        line.example or "",
    )


def _policies(report: Report) -> Table:
    rows = tuple((p.kind, p.says, str(p.rows)) for p in report.policies)
    return Table("Policy (no answer is an error)", ("QUESTION", "THE VERIFIER", "ROWS"), rows)


def _relations(report: Report) -> Table:
    rows = tuple(
        (r.name, str(r.broken), str(r.tested), _short(r.example)) for r in report.relations
    )
    return Table("Relations", ("RELATION", "BROKEN", "TESTED", "EXAMPLE"), rows)


def _lazy(report: Report) -> Table:
    rows = tuple(
        (
            lazy.policy,
            f"{percent(lazy.reward)} [{100 * lazy.low:.1f}, {100 * lazy.high:.1f}]",
            percent(lazy.base),
            f"+{percent(lazy.excess)}" if lazy.excess > 1e-9 else "",
            str(lazy.golds),
        )
        for lazy in report.lazy
    )
    header = ("POLICY", "MEAN REWARD", "BASE RATE", "EXCESS", "GOLDS")
    return Table("Policies that know nothing", header, rows)


def _guesses(report: Report) -> Table:
    rows = tuple(
        (g.what, percent(g.share), str(g.group_size), percent(g.in_group)) for g in report.guesses
    )
    header = ("BLIND GUESS", "RIGHT ONCE", "GROUP", "AT LEAST ONCE IN A GROUP")
    return Table("Guessing", header, rows)


def _exploits(report: Report) -> Table:
    passing = report.passing
    families = [*passing, *(f for f in report.exploits if not f.passes)]
    rows = tuple(
        (f.name, "PASSES" if f.passes else "refused", f"{f.paid}/{f.rows}", _short(f.example))
        for f in families
    )
    notes = () if report.conclusive else ("inconclusive: most golds are rejected too",)
    return Table("Exploit families", ("FAMILY", "RESULT", "PAID", "EXAMPLE"), rows, notes)


def _code(report: Report) -> Table:
    if report.code is None:
        return Table("Sandbox")
    rows = tuple(
        (a.name, a.family, "ok" if a.contained else "FAILS", _short(a.detail))
        for a in report.code.attacks
    )
    notes = [f"level in force: {report.code.level}"]
    for level, names in report.code.weaker.items():
        notes.append(f"level {level} would let through: {', '.join(names) or 'none of these'}")
    return Table("Sandbox", ("PROGRAM", "FAMILY", "RESULT", "DETAIL"), rows, tuple(notes))


def _bombs(report: Report) -> Table:
    rows = tuple(
        (
            bomb.name,
            bomb.status.value,
            f"{bomb.seconds:.2f}",
            "yes" if bomb.neighbours else "NO",
            "contained" if bomb.contained else "NOT CONTAINED",
        )
        for bomb in report.bombs
    )
    header = ("COSTLY ANSWER", "STATUS", "SECONDS", "NEIGHBOURS KEPT", "RESULT")
    return Table("Costly answers", header, rows)


def _repeats(report: Report) -> Table:
    rows = tuple((r.how, str(r.changed), str(r.asked), _short(r.example)) for r in report.repeats)
    return Table("The same questions again", ("HOW", "CHANGED", "ASKED", "EXAMPLE"), rows)


def _speed(report: Report) -> Table:
    s = report.speed
    times = ", ".join(
        f"{name} {_seconds(value)}"
        for name, value in (("p50", s.p50_s), ("p99", s.p99_s), ("max", s.max_s))
    )
    line = f"{s.calls} calls: {times}, {s.timeouts} timeouts; the audit took {report.seconds:.0f} s"
    return Table("Time", notes=(line,))


def _versus(report: Report) -> Table:
    v = report.versus
    if v is None:
        return Table("Comparison")
    notes = [
        f"{v.rows} rows; only {report.name} is right on {v.only_this}, "
        f"only {v.other} on {v.only_other}",
        f"by problem {v.problems_this} to {v.problems_other}, exact binomial p = {v.p:.3g}",
    ]
    left = len(v.disagreements) - _MAX_DISAGREEMENTS
    if left > 0:
        notes.append(f"{left} more rows with --json")
    rows = tuple(
        (
            d.row_id,
            "accept" if d.must_accept else "reject",
            report.name if d.right else v.other,
            d.reference[:40],
            _short(d.text),
        )
        for d in v.disagreements[:_MAX_DISAGREEMENTS]
    )
    header = ("ROW", "MUST", "RIGHT", "REFERENCE", "TEXT")
    return Table(f"Against {v.other}: the rows on which they differ", header, rows, tuple(notes))


def _advice(report: Report) -> Table:
    notes = []
    if report.golds.unparsable:
        notes.append(
            f"{report.golds.unparsable} golds can never be paid: task.filters.unparsable=true "
            "leaves them out of training"
        )
    enough = report.kind == "choice" or report.golds.golds >= _ENOUGH_GOLDS
    easy = [g for g in report.guesses if g.share >= 0.2 and enough]
    if easy:
        notes.append(
            f"a blind guess is right {percent(easy[0].share)} of the time: shuffle options, offer "
            "more, ask open questions, or set task.filters.max_guess_rate"
        )
    return Table("What to do", notes=tuple(notes))


def _headline(report: Report) -> Table:
    head = report.headline
    where = f"FN from: {head.fn_from} ({head.fn.problems} problems, {head.fn.rows} rows); "
    where += f"FP from: {head.fp_from} ({head.fp.problems} problems, {head.fp.rows} rows)"
    notes = [headline_text(report), where]
    if report.no_verdict:
        rows = sum(line.rate.rows for line in report.lines)
        notes.append(
            f"{report.no_verdict} of {rows} rows got no verdict and count as not accepted; "
            f"the first says: {_short(report.missing_detail, 120)}"
        )
    return Table("Headline", notes=tuple(notes))


def _gate(results: Sequence[TermResult]) -> Table:
    if not results:
        return Table("Gate")
    word = "passed" if all(result.holds for result in results) else "FAILED"
    return Table(f"Gate {word}", notes=tuple(str(result) for result in results))


def _seconds(value: float) -> str:
    if math.isnan(value):
        return "n/a"
    return f"{value:.1f} s" if value >= 1 else f"{1e3 * value:.3g} ms"


def _short(text: str | None, limit: int = 60) -> str:
    """One line of at most `limit` characters."""
    line = " ".join((text or "").split())
    return line if len(line) <= limit else f"{line[: limit - 1]}…"
