"""The tables of a comparison as rows of plain text, for every form of output."""

from __future__ import annotations

import math
from dataclasses import dataclass

from grpo_cli.compare.health import EVAL_LABELS, LABELS, SPENT_LABELS
from grpo_cli.compare.model import ArmResult, Comparison
from grpo_cli.compare.words import bounds, delta, p_value, unit, value


@dataclass(frozen=True, slots=True)
class Table:
    """A heading row, rows as wide as it, and what to say below."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""


def scores_table(comparison: Comparison) -> Table:
    """Seeds, mean, seed SD and interval of every arm, and its verdict."""
    metric = comparison.metric
    rows = tuple(
        (
            arm.name,
            _seeds(arm),
            value(metric, arm.score.mean),
            delta(metric, arm.sd).lstrip("+"),
            bounds(metric, arm.score.low, arm.score.high),
            str(arm.verdict),
        )
        for arm in comparison.arms
    )
    header = ("arm", "seeds", "mean", "seed SD", "95 % interval", "verdict")
    place = f"step {comparison.at}" if comparison.at.isdecimal() else comparison.at
    word = ", exploratory" if comparison.exploratory else ""
    return Table(
        f"{metric} at {place}{word}, per arm; the unit is the training seed",
        header,
        rows,
        "seeds: with a score / planned or started" if any("/" in row[1] for row in rows) else "",
    )


def versus_table(comparison: Comparison) -> Table | None:
    """Every arm against the control; None without a second arm."""
    compared = [arm for arm in comparison.arms if arm.versus is not None]
    if not compared:
        return None
    metric = comparison.metric
    rows = []
    for arm in compared:
        versus = arm.versus
        assert versus is not None
        d, prob, boot = versus.difference, versus.prob_above, versus.bootstrap
        test: str = d.method if min(versus.num_seeds) > 1 else "-"
        if test == "paired" and not math.isnan(versus.correlation):
            test = f"paired, r={versus.correlation:.2f}"
        rows.append(
            (
                arm.name,
                delta(metric, d.mean),
                bounds(metric, d.low, d.high, signed=True),
                "-"
                if boot is None or boot.low == boot.high
                else bounds(metric, boot.low, boot.high, signed=True),
                test,
                p_value(d.p),
                p_value(versus.p_holm),
                f"{prob.mean:.2f} [{prob.low:.2f}, {prob.high:.2f}]" if prob.n > 2 else "-",
                delta(metric, versus.mde).lstrip("+"),
            )
        )
    header = (
        "arm",
        "difference",
        "95 % interval",
        "seeds x questions",
        "test",
        "p",
        "Holm p",
        f"P(arm > {comparison.control})",
        "MDE",
    )
    note = (
        f"Holm over {comparison.family} comparison{'s' if comparison.family > 1 else ''}; MDE: the "
        f"difference that this design finds with 80 % power at the level Holm needs at worst "
        f"({comparison.alpha:g} / {comparison.family})"
    )
    return Table(
        f"against {comparison.control} ({comparison.control_why}), in {unit(metric)}",
        header,
        tuple(rows),
        note if comparison.family else "nothing was tested",
    )


def health_table(comparison: Comparison) -> Table:
    """One row per metric, one column per arm; a row that no arm knows is left out."""
    rows = []
    for key, label in (LABELS | EVAL_LABELS | SPENT_LABELS).items():
        numbers = [arm.health[key] for arm in comparison.arms]
        if any(not math.isnan(number) for number in numbers):
            rows.append((label, *(_health(key, number) for number in numbers)))
    areas = [arm.health.get("area", math.nan) for arm in comparison.arms]
    if any(not math.isnan(a) for a in areas):
        shown = (value(comparison.metric, a) for a in areas)
        rows.append((f"mean {comparison.metric} over equal tokens", *shown))
    return Table(
        "health and cost, mean over seeds",
        ("", *(arm.name for arm in comparison.arms)),
        tuple(rows),
        "training metrics: last quarter of the steps; held-out: at the step that is scored",
    )


def seeds_table(comparison: Comparison) -> Table:
    """Every run: its score, and how it ended."""
    rows = []
    for arm in comparison.arms:
        for s in arm.seeds:
            counted = value(comparison.metric, s.score)
            late = value(comparison.metric, s.late_score)
            score = counted if late == "-" else f"({late})"
            step = "-" if s.step is None else str(s.step)
            rows.append((arm.name, str(s.seed), score, step, s.state, s.place))
        rows += [(arm.name, str(seed), "-", "-", "not run", "-") for seed in arm.missing]
    note = "in brackets: the last score of a run that did not finish, which does not count"
    return Table(
        "runs",
        ("arm", "seed", comparison.metric, "step", "state", "run"),
        tuple(rows),
        note if any("(" in row[2] for row in rows) else "",
    )


def _seeds(arm: ArmResult) -> str:
    total = len(arm.seeds) + len(arm.missing)
    return str(total) if arm.score.n == total else f"{arm.score.n}/{total}"


def _health(key: str, number: float) -> str:
    if math.isnan(number):
        return "-"
    if key.endswith("_frac"):
        return f"{100 * number:.1f} %"
    if key in SPENT_LABELS:
        return f"{number:,.0f}"
    return f"{number:.1f}" if "length" in key else f"{number:.3g}"
