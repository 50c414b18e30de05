"""A comparison in plain sentences: what was found, what could not be, and what else explains it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from grpo_cli.compare.arms import ABSENT, shown
from grpo_cli.compare.health import SPENT_LABELS
from grpo_cli.compare.model import ArmResult, Comparison, SeedScore, Verdict, Versus
from grpo_cli.compare.score import ACCURACY, BEST
from grpo_cli.errors import error
from grpo_cli.stats import Difference

UNEQUAL = 1.1
"""Budgets that differ by more than this factor are said to be unequal."""

_EXPLAINS = 0.5
"""A change in truncation or parsing of this share of the gain is said to explain it."""

_BUDGETS = ("steps", "prompts", "tokens", "seconds")


def check_best(metric: str) -> None:
    """Raise GR209: only a score that can be split by question can pick a checkpoint fairly."""
    if metric != ACCURACY:
        raise error(
            "GR209",
            f"--at {BEST} needs --metric {ACCURACY}",
            hint="it picks the checkpoint on one half of the held-out questions and scores it on "
            "the other",
        )


def is_share(metric: str) -> bool:
    """Whether the metric is a share, shown in percent."""
    name = metric.rpartition("/")[2]
    return name.endswith(("accuracy", "_frac")) or name.startswith(("pass_at", "avg_at", "maj_at"))


def unit(metric: str) -> str:
    """The unit of a difference of scores."""
    return "points" if is_share(metric) else f"units of {metric}"


def value(metric: str, number: float) -> str:
    """A score as a person reads it."""
    if math.isnan(number):
        return "-"
    return f"{100 * number:.1f} %" if is_share(metric) else f"{number:.4g}"


def delta(metric: str, number: float) -> str:
    """A signed difference of scores, without its unit."""
    if math.isnan(number):
        return "-"
    return f"{100 * number:+.1f}" if is_share(metric) else f"{number:+.4g}"


def bounds(metric: str, low: float, high: float, signed: bool = False) -> str:
    """An interval. A t interval does not know that a share ends at 0 and 1; this does."""
    if math.isnan(low):
        return "-"
    if signed:
        return f"[{delta(metric, low)}, {delta(metric, high)}]"
    if is_share(metric):
        return f"[{100 * max(low, 0):.1f}, {100 * min(high, 1):.1f}]"
    return f"[{low:.4g}, {high:.4g}]"


def p_value(p: float) -> str:
    """A p value with the digits that matter."""
    if math.isnan(p):
        return "-"
    return "<0.001" if p < 0.001 else f"{p:.3f}"


def with_words(comparison: Comparison, noted: Sequence[str]) -> Comparison:
    """The comparison with a sentence and remarks per arm, and the notes about all of it."""
    control = comparison.arms[0]
    arms = tuple(
        replace(
            arm,
            sentence=_sentence(arm, comparison),
            remarks=tuple(_remarks(arm, control, comparison)),
        )
        for arm in comparison.arms
    )
    comparison = replace(comparison, arms=arms)
    return replace(comparison, notes=(*_notes(comparison), *noted))


def _sentence(arm: ArmResult, comparison: Comparison) -> str:
    metric, versus = comparison.metric, arm.versus
    name = arm.name
    if arm.verdict is Verdict.NO_SCORE:
        return f"{name}: no run has a score that counts, so nothing can be said."
    if versus is None:
        if comparison.control is None:
            what = "is the only arm, so there is nothing to compare it with"
        else:
            what = "is the control"
        return f"{name} {what}: {_standing(arm, metric)}."
    d, control = versus.difference, comparison.control
    size = f"{amount(metric, abs(d.mean))} {'above' if d.mean > 0 else 'below'} {control}"
    if delta(metric, d.mean) == delta(metric, 0.0):
        size = f"level with {control}"
    interval = bounds(metric, d.low, d.high, signed=True)
    if arm.verdict is Verdict.ANECDOTE:
        each = "per arm" if versus.num_seeds == (1, 1) else "in one of them"
        return f"{name} is {size}, with one seed {each}: this is an anecdote."
    if arm.verdict is Verdict.INTERVAL_ONLY:
        return f"{name} is {size}, 95 % interval {interval}: two seeds are too few for a test."
    if arm.verdict is Verdict.IDENTICAL:
        return (
            f"{name} and {control} have the same score on every seed, so there is nothing to test."
        )
    if arm.verdict is Verdict.NO_SPREAD:
        return f"{name} is {size} on every seed alike: without any spread there is no test."
    able = f"this design could detect {amount(metric, versus.mde)}"
    if arm.verdict is Verdict.NONE:
        near = ""
        if d.p <= comparison.alpha:
            near = (
                f"; p {p_value(d.p)} by itself does not stand among {comparison.family} "
                f"comparisons (Holm p {p_value(versus.p_holm)})"
            )
        return (
            f"{name}: no difference detected from {control} ({delta(metric, d.mean)}, 95 % "
            f"interval {interval}{_unit(metric)}); {able}{near}."
        )
    return (
        f"{name} is {arm.verdict} than {control} by {amount(metric, abs(d.mean))}, 95 % interval "
        f"{interval} ({_test_name(versus)}, Holm p {p_value(versus.p_holm)})."
    )


def _remarks(arm: ArmResult, control: ArmResult, comparison: Comparison) -> list[str]:
    found = []
    failed = [s for s in arm.seeds if s.state != "done"]
    if failed:
        found.append(f"{arm.name}: {_runs(failed)}")
    if arm.missing:
        found.append(f"{arm.name}: seed {_list(arm.missing)} was planned and not run")
    versus = arm.versus
    if versus is None:
        return found
    if versus.with_unfinished is not None:
        found.append(
            f"{arm.name}: with the last scores of the runs that did not finish the difference is "
            f"{_difference(comparison.metric, versus.with_unfinished)}, without them "
            f"{_difference(comparison.metric, versus.difference)}"
        )
    if not math.isnan(versus.correlation) and versus.correlation < -0.05:
        found.append(
            f"{arm.name}: the paired seeds are not alike (correlation {versus.correlation:.2f}), "
            "so pairing costs precision here"
        )
    found += _explanations(arm, control, comparison)
    uneven = _uneven(arm, control)
    if uneven:
        found.append(f"{arm.name}: unequal budgets, {uneven}")
    return found


def _explanations(arm: ArmResult, control: ArmResult, comparison: Comparison) -> list[str]:
    """What moved with an accuracy and may be all that moved."""
    versus = arm.versus
    silent = (Verdict.NONE, Verdict.NO_SCORE, Verdict.IDENTICAL, Verdict.ANECDOTE)
    is_right = "accuracy" in comparison.metric or "_at_" in comparison.metric
    if versus is None or arm.verdict in silent or not is_right:
        return []
    gain = versus.difference.mean
    found = []
    for key, what in (
        ("eval/truncated_frac", "truncated answers"),
        ("eval/unparsed_frac", "answers that could not be read"),
        ("eval/verifier_error_frac", "answers on which the verifier failed"),
    ):
        drop = control.health[key] - arm.health[key]
        if gain and drop / gain >= _EXPLAINS:
            word = "fewer" if drop > 0 else "more"
            found.append(
                f"{arm.name}: the {'gain' if gain > 0 else 'loss'} of {_points(abs(gain))} goes "
                f"with {_points(abs(drop))} {word} {what} ({value(key, control.health[key])} to "
                f"{value(key, arm.health[key])}), which may be all of it: it need not be better or "
                "worse reasoning"
            )
    return found


def _uneven(arm: ArmResult, control: ArmResult) -> str:
    parts = []
    for key in _BUDGETS:
        ours, theirs = arm.health[key], control.health[key]
        if ours > 0 and theirs > 0 and max(ours / theirs, theirs / ours) > UNEQUAL:
            parts.append(f"{ours / theirs:.2f} times the control's {SPENT_LABELS[key]}")
    return ", ".join(parts)


def _notes(comparison: Comparison) -> list[str]:
    found = []
    if comparison.exploratory:
        found.append(
            "exploratory: the plan named another primary metric, so this can suggest and not decide"
        )
    if comparison.at == BEST:
        found.append(
            "every checkpoint was chosen on one half of the held-out questions and scored on the "
            "other half"
        )
    if any(arm.versus and arm.versus.bootstrap for arm in comparison.arms):
        found.append(
            f"crossed bootstrap over seeds and questions: {comparison.num_resamples} resamples, "
            f"generator seed {comparison.rng_seed}; it errs on the wide side"
        )
    elif comparison.metric == ACCURACY and any(
        arm.versus and min(arm.versus.num_seeds) >= 2 for arm in comparison.arms
    ):
        found.append("no crossed bootstrap: the rows of the held-out answers are not there")
    tested = [arm.versus.num_seeds for arm in comparison.arms if arm.versus]
    if any(min(num) == 1 for num in tested):
        found.append("one seed is an anecdote: train at least three per arm, better five")
    if comparison.direction == "none":
        found.append(f"neither direction of {comparison.metric} is known to be better")
    return found


def _standing(arm: ArmResult, metric: str) -> str:
    score = arm.score
    text = value(metric, score.mean)
    if math.isnan(score.low):
        return f"{text} with one seed"
    return f"{text}, 95 % interval {bounds(metric, score.low, score.high)}, over {score.n} seeds"


def _runs(seeds: Sequence[SeedScore]) -> str:
    by_state: dict[str, list[SeedScore]] = {}
    for seed in seeds:
        by_state.setdefault(seed.state, []).append(seed)
    parts = []
    for state, members in by_state.items():
        reasons = "; ".join(dict.fromkeys(m.reason for m in members if m.reason))
        why = f" ({reasons[:200]})" if reasons else ""
        counted = [m for m in members if not math.isnan(m.score)]
        counts = "" if len(counted) < len(members) else ", counted at this step"
        parts.append(f"seed {_list([m.seed for m in members])} {state}{why}{counts}")
    return ", ".join(parts)


def _difference(metric: str, d: Difference) -> str:
    return f"{delta(metric, d.mean)} {bounds(metric, d.low, d.high, signed=True)}"


def _test_name(versus: Versus) -> str:
    if versus.difference.method == "paired":
        return f"paired t over {versus.num_seeds[0]} shared seeds"
    return f"Welch t, {versus.num_seeds[0]} and {versus.num_seeds[1]} seeds"


def amount(metric: str, number: float) -> str:
    if math.isnan(number):
        return "nothing"
    return _points(number) if is_share(metric) else f"{number:.4g}"


def _unit(metric: str) -> str:
    return " points" if is_share(metric) else ""


def _points(number: float) -> str:
    return f"{100 * number:.1f} points"


def _list(numbers: Sequence[int]) -> str:
    return ", ".join(str(number) for number in numbers)


def changes_text(arm: ArmResult, most: int = 6) -> str:
    """The keys in which an arm differs from the control, on one line."""
    # A node of another kind lacks the old kind's keys: naming the kind says it all.
    kinds = {key.removesuffix(".kind") for key in arm.changes if key.endswith(".kind")}
    parts = [
        f"{key}={shown(val)}"
        for key, val in arm.changes.items()
        if not (val == ABSENT and key.rpartition(".")[0] in kinds)
    ]
    more = f" and {len(parts) - most} more" if len(parts) > most else ""
    return ", ".join(parts[:most]) + more
