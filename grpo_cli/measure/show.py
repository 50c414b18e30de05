"""A report as text and as JSON."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from grpo_cli.measure.figures import FEW, Figure, Summary, best
from grpo_cli.measure.leak import Leak
from grpo_cli.measure.run import Report
from grpo_cli.report import JSON_VERSION

ABOUT_CHECKPOINTS = (
    "this is a statement about these two checkpoints, not about a method: that needs several "
    "training seeds (`grpo compare`)"
)
ABOUT_TEMPLATES = "measure a gain against the best template, not against the one that is at hand"


def document(report: Report) -> dict[str, Any]:
    """The JSON document; no NaN, no timings, so the same ask gives the same bytes."""
    recipe, ask = report.recipe, report.ask
    found = {
        "schema_version": JSON_VERSION,
        "target": report.subject.label,
        "task": recipe.task.kind,
        "split": ask.split,
        "num_questions": report.num_questions,
        "k": ask.k,
        "seed": report.seed,
        "temperature": recipe.sampling.temperature,
        **recipe.sampling.model_dump(include={"top_p", "top_k"}, exclude_defaults=True),
        "max_tokens": recipe.sampling.max_tokens,
        "engine": report.engine,
        "verifier": report.verifier,
        "out": report.folder.as_posix(),
        "policies": [
            {
                "policy": cell.policy,
                "kind": report.policies[cell.policy].kind,
                "model": report.policies[cell.policy].model.id,
                "step": report.policies[cell.policy].step,
                "template": cell.template,
                **_summary_json(summary),
            }
            for cell, summary in report.summaries.items()
        ],
        "vs": None
        if report.other is None
        else {
            "other": report.other.label,
            "differences": {k: _figure_json(f) for k, f in report.differences.items()},
            "note": ABOUT_CHECKPOINTS,
        },
        "templates": _templates_json(report),
        "contamination": [asdict(leak) for leak in report.leaks],
        "notes": list(report.notes),
    }
    nulls = _nulls(found)
    assert isinstance(nulls, dict)
    return nulls


def text(report: Report) -> str:
    """The report for a terminal; every name in it still has to be made safe to print."""
    return "\n".join(_lines(report)) + "\n"


def _lines(report: Report) -> Iterator[str]:
    recipe, ask = report.recipe, report.ask
    split = "held-out" if ask.split == "test" else "training"
    yield (
        f"{report.subject.label}: {recipe.task.kind}, {report.num_questions} {split} questions x "
        f"{ask.k} sample{'s' * (ask.k > 1)}, {recipe.sampling.drawn()}, at most "
        f"{recipe.sampling.max_tokens} tokens, seed {report.seed}, verifier {report.verifier}"
    )
    yield ""
    yield from _table(_main_rows(report))
    if ask.k > 1:
        yield ""
        yield from _table(_pass_rows(report))
    yield ""
    methods = dict.fromkeys(f.method for s in report.summaries.values() for f in s.figures)
    yield f"95 % intervals over questions: {'; '.join(methods)}"
    yield from _difference_lines(report)
    yield from _template_lines(report)
    for leak in report.leaks:
        yield f"contamination: {_leak_text(leak)}"
    for note in report.notes:
        yield f"note: {note}"
    yield f"rows and summary: {report.folder.as_posix()}"


def _main_rows(report: Report) -> Iterator[tuple[str, ...]]:
    first = next(iter(report.summaries.values()))
    names = [f.name for f in first.figures]
    majority = any(s.figure(f"maj@{report.ask.k}") for s in report.summaries.values())
    shown = [names[0], *([f"maj@{report.ask.k}"] if majority else [])]
    yield (
        "POLICY",
        "TEMPLATE",
        *(name.upper() for name in shown),
        "LENGTH",
        "TRUNCATED",
        "NO ANSWER",
        "VERIFIER FAILED",
    )
    for cell, summary in report.summaries.items():
        yield (
            cell.policy,
            cell.template,
            *(_figure(summary.figure(name)) for name in shown),
            f"{summary.mean_length:.1f}",
            _percent(summary.truncated_frac),
            _percent(summary.unparsed_frac),
            _percent(summary.verifier_failed_frac),
        )


def _pass_rows(report: Report) -> Iterator[tuple[str, ...]]:
    first = next(iter(report.summaries.values()))
    names = [f.name for f in first.figures if f.name.startswith("pass@")]
    yield ("POLICY", "TEMPLATE", *(name.upper() for name in names))
    for cell, summary in report.summaries.items():
        yield (cell.policy, cell.template, *(_figure(summary.figure(name)) for name in names))


def _difference_lines(report: Report) -> Iterator[str]:
    if report.other is None:
        return
    yield ""
    for template, figure in report.differences.items():
        where = f", {template}" if len(report.differences) > 1 else ""
        yield (
            f"{report.subject.label} minus {report.other.label}{where}: {_points(figure)}  "
            f"{_verdict(figure)}"
        )
    yield ABOUT_CHECKPOINTS


def _template_lines(report: Report) -> Iterator[str]:
    if len(report.ask.templates) == 0:
        return
    yield ""
    for label, own in _by_policy(report).items():
        low, high = _ends(own)
        yield (
            f"{label}: {_percent(_mean(own[low]))} ({low}) to "
            f"{_percent(_mean(own[high]))} ({high}), spread "
            f"{100 * (_mean(own[high]) - _mean(own[low])):.1f} points over {len(own)} "
            "templates"
        )
    if report.gain is not None:
        gain = report.gain
        yield (
            f"gain of {report.subject.label} ({gain.trained}) over the base's best template "
            f"({gain.base}): {_points(gain.figure)}  {_verdict(gain.figure)}"
        )
    yield ABOUT_TEMPLATES


def _by_policy(report: Report) -> dict[str, dict[str, Summary]]:
    found: dict[str, dict[str, Summary]] = {}
    for cell, summary in report.summaries.items():
        found.setdefault(cell.policy, {})[cell.template] = summary
    return found


def _ends(own: Mapping[str, Summary]) -> tuple[str, str]:
    """Names of the lowest and of the highest accuracy."""
    return min(own, key=lambda name: _mean(own[name])), best(own)


def _templates_json(report: Report) -> list[dict[str, Any]] | None:
    if not report.ask.templates:
        return None
    found = []
    for label, own in _by_policy(report).items():
        low, high = _ends(own)
        found.append(
            {
                "policy": label,
                "worst": low,
                "best": high,
                "spread": _mean(own[high]) - _mean(own[low]),
                "note": ABOUT_TEMPLATES,
            }
        )
        if report.gain is not None and label == report.subject.label:
            found[-1]["gain_over_best_of_base"] = {
                "template": report.gain.trained,
                "base_template": report.gain.base,
                **_figure_json(report.gain.figure),
            }
    return found


def _leak_text(leak: Leak) -> str:
    if leak.unread is not None:
        return f"the {leak.source} could not be read ({leak.unread})"
    files = ", ".join(leak.where[:3]) + (
        f" and {len(leak.where) - 3} more" if len(leak.where) > 3 else ""
    )
    return (
        f"{leak.count} of {leak.total} held-out questions are among the {leak.source}"
        + (f": {files}" if files else "")
    )  # fmt: skip


def _verdict(figure: Figure) -> str:
    interval = figure.interval
    if math.isnan(interval.low):
        return "no interval" + (": every question differs alike" if interval.n > 1 else "")
    if interval.n <= FEW:
        return f"{interval.n} questions are too few to call one of them better"
    if not interval.excludes_zero:
        return "no difference detected"
    return "higher" if interval.mean > 0 else "lower"


def _figure(figure: Figure | None) -> str:
    if figure is None:
        return "-"
    i = figure.interval
    if math.isnan(i.low):
        return _percent(i.mean)
    return f"{_percent(i.mean)} [{100 * i.low:.1f}, {100 * i.high:.1f}]"


def _points(figure: Figure) -> str:
    i = figure.interval
    if math.isnan(i.low):
        return f"{100 * i.mean:+.1f} points" if not math.isnan(i.mean) else "-"
    return f"{100 * i.mean:+.1f} points [{100 * i.low:+.1f}, {100 * i.high:+.1f}] ({figure.method})"


def _percent(share: float) -> str:
    return "-" if math.isnan(share) else f"{100 * share:.1f} %"


def _mean(summary: Summary) -> float:
    return summary.accuracy.interval.mean


def _summary_json(summary: Summary) -> dict[str, Any]:
    fields = asdict(summary)
    return {
        **{key: value for key, value in fields.items() if key != "figures"},
        "figures": {figure.name: _figure_json(figure) for figure in summary.figures},
    }


def _figure_json(figure: Figure) -> dict[str, Any]:
    return {**asdict(figure.interval), "method": figure.method}


def _nulls(value: object) -> object:
    """NaN as null: JSON has no NaN."""
    if isinstance(value, Mapping):
        return {key: _nulls(child) for key, child in value.items()}
    if isinstance(value, list | tuple):
        return [_nulls(child) for child in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _table(rows: Iterator[tuple[str, ...]]) -> Iterator[str]:
    lines: Sequence[tuple[str, ...]] = list(rows)
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    for line in lines:
        yield "  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)).rstrip()
