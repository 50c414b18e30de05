"""The statistics of a comparison: arms in, a `Comparison` out. Pure but for reading eval rows.

The unit is the training seed; questions are never pooled over seeds for a statement about a
method. Dims: S seeds, Q questions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from grpo_cli import stats
from grpo_cli.compare import arms as grouping
from grpo_cli.compare import curves, words
from grpo_cli.compare.health import CURVES, health, mean_health
from grpo_cli.compare.model import (
    ALPHA,
    MIN_SEEDS,
    Arm,
    ArmResult,
    Comparison,
    Plan,
    QuestionScores,
    RunRecord,
    SeedScore,
    Verdict,
    Versus,
)
from grpo_cli.compare.score import (
    ACCURACY,
    BEST,
    check_at,
    check_scored,
    direction_of,
    is_validation,
    score_arm,
)
from grpo_cli.seeds import seed63

NUM_RESAMPLES = 2000
RNG_SEED = 0
_ALSO_IN_EVALUATION = {f"sampling.{key}" for key in ("max_tokens", "temperature", "top_k", "top_p")}


def compare(
    runs: Sequence[RunRecord],
    plans: Sequence[Plan] = (),
    *,
    metric: str | None = None,
    at: str | None = None,
    baseline: str | None = None,
    group_by: str = "arm",
    allow_diff: bool = False,
) -> Comparison:
    """Judge the arms of some runs.

    Without `metric` and `at` the plan's primary is used, else held-out accuracy at the end.

    Raises:
        GrpoError: GR209 for a bad `at`, GR231 for arms that differ outside the declared axis, GR232
            for arms that cannot be told apart, GR233 when nothing has a score.
    """
    primary, planned_at, direction = _primary(plans)
    chosen, where = metric or primary, at or planned_at
    if chosen != primary or direction not in ("higher", "lower"):
        direction = direction_of(chosen)
    check_at(where)
    if where == BEST:
        words.check_best(chosen)
    arms = grouping.with_arm_names(grouping.make_arms(runs, plans, group_by))
    control_name, why = grouping.choose_control(arms, plans, baseline)
    arms = sorted(arms, key=lambda arm: arm.name != control_name)
    control = arms[0]
    differences = grouping.unfair(arms, control, plans)
    if not allow_diff:
        grouping.refuse(differences)
    scores = [score_arm(arm, chosen, where) for arm in arms]
    check_scored(arms, [score for row in scores for score in row], chosen, where)
    pairs = [
        None if arm is control else _versus(arm, scores[i], control, scores[0], chosen, where)
        for i, arm in enumerate(arms)
    ]
    pairs, family = _with_family(pairs)
    results = [
        _result(arm, control, row, pair, chosen, direction, where)
        for arm, row, pair in zip(arms, scores, pairs, strict=True)
    ]
    results = _with_areas(results, arms, chosen)
    comparison = Comparison(
        metric=chosen,
        at=where,
        direction=direction,
        control=control_name,
        control_why=why,
        alpha=ALPHA,
        family=family,
        exploratory=bool(plans) and (chosen, where) != (primary, planned_at),
        arms=tuple(results),
        notes=(),
        differences=tuple(differences),
        rng_seed=RNG_SEED,
        num_resamples=NUM_RESAMPLES,
    )
    noted = grouping.noted_differences(arms)
    return words.with_words(comparison, [*noted, *_measure_notes(arms, control)])


def _primary(plans: Sequence[Plan]) -> tuple[str, str, str | None]:
    """Metric, place and direction that the plan named before the runs."""
    named = {plan.primary for plan in plans if plan.primary}
    if len(named) != 1:
        return ACCURACY, "final", None
    metric, _, where = named.pop().partition("@")
    direction = next((plan.direction for plan in plans if plan.direction), None)
    return metric, where.removeprefix("step ") or "final", direction


def _versus(
    arm: Arm,
    arm_scores: Sequence[SeedScore],
    control: Arm,
    control_scores: Sequence[SeedScore],
    metric: str,
    where: str,
) -> Versus:
    a = {s.seed: s.score for s in arm_scores if not math.isnan(s.score)}
    b = {s.seed: s.score for s in control_scores if not math.isnan(s.score)}
    paired = _is_paired(arm, control, a, b)
    difference, prob, permutation, correlation = _test(a, b, paired)
    testable = min(_counts(a, b, paired)) >= MIN_SEEDS
    if not testable:
        difference = replace(difference, p=math.nan)
        permutation = math.nan
    unfinished_a = a | {s.seed: s.late_score for s in arm_scores if s.seed not in a}
    unfinished_b = b | {s.seed: s.late_score for s in control_scores if s.seed not in b}
    unfinished_a = {k: v for k, v in unfinished_a.items() if not math.isnan(v)}
    unfinished_b = {k: v for k, v in unfinished_b.items() if not math.isnan(v)}
    with_unfinished = None
    if (unfinished_a, unfinished_b) != (a, b):
        with_unfinished = _test(unfinished_a, unfinished_b, paired)[0]
    bootstrap = None
    if metric == ACCURACY and min(_counts(a, b, paired)) >= 2:
        bootstrap = _bootstrap(arm, arm_scores, control, control_scores, where, paired)
    return Versus(
        difference=difference,
        p_holm=math.nan,
        p_permutation=permutation,
        prob_above=prob,
        mde=math.nan,
        correlation=correlation,
        num_seeds=_counts(a, b, paired),
        bootstrap=bootstrap,
        with_unfinished=with_unfinished,
    )


def _is_paired(arm: Arm, control: Arm, a: dict[int, float], b: dict[int, float]) -> bool:
    """Whether equal seeds mean equal adapters and prompts, and were used for both arms throughout.

    A seed that failed in one arm leaves the pairs of the others; arms that happen to have a seed in
    common are not paired.
    """
    seeds = [{*(run.seed for run in x.runs), *x.missing} for x in (arm, control)]
    changes = grouping.recipe_changes(control.leaves, arm.leaves)
    return seeds[0] == seeds[1] and bool(a.keys() & b.keys()) and grouping.seeds_pair(changes)


def _counts(a: dict[int, float], b: dict[int, float], paired: bool) -> tuple[int, int]:
    if paired:
        shared = len(a.keys() & b.keys())
        return shared, shared
    return len(a), len(b)


def _test(
    a: dict[int, float], b: dict[int, float], paired: bool
) -> tuple[stats.Difference, stats.Interval, float, float]:
    """Difference, P(A > B), permutation p and correlation."""
    rng = np.random.default_rng(RNG_SEED)
    if paired:
        seeds = sorted(a.keys() & b.keys())
        x, y = np.array([a[s] for s in seeds]), np.array([b[s] for s in seeds])
        spread = len(seeds) > 2 and np.ptp(x) > 0 and np.ptp(y) > 0
        correlation = float(np.corrcoef(x, y)[0, 1]) if spread else math.nan
        return (
            stats.paired_t(x, y),
            stats.prob_above_paired(x, y),
            stats.sign_flip_p(x, y, rng),
            correlation,
        )
    x, y = np.array([a[s] for s in sorted(a)]), np.array([b[s] for s in sorted(b)])
    return stats.welch(x, y), stats.prob_above(x, y), stats.permutation_p(x, y, rng), math.nan


def _bootstrap(
    arm: Arm,
    arm_scores: Sequence[SeedScore],
    control: Arm,
    control_scores: Sequence[SeedScore],
    where: str,
    paired: bool,
) -> stats.Interval | None:
    """The crossed interval, where every scored run still has its rows."""
    seeds_a = [s.seed for s in arm_scores if not math.isnan(s.score)]
    seeds_b = [s.seed for s in control_scores if not math.isnan(s.score)]
    if paired:
        seeds_a = seeds_b = sorted(set(seeds_a) & set(seeds_b))
    rows_a = _question_rows(arm, arm_scores, seeds_a)
    rows_b = _question_rows(control, control_scores, seeds_b)
    if rows_a is None or rows_b is None:
        return None
    questions = sorted({q for row in [*rows_a, *rows_b] for q in row})
    if where == BEST:
        questions = [q for q in questions if not is_validation(q)]
    matrix_a, matrix_b = (
        np.array([[row.get(q, math.nan) for q in questions] for row in rows])
        for rows in (rows_a, rows_b)
    )
    rng = np.random.default_rng(seed63(RNG_SEED, "crossed", arm.name, control.name))
    return stats.crossed_bootstrap(
        matrix_a, matrix_b, rng, paired=paired, num_resamples=NUM_RESAMPLES
    )


def _question_rows(
    arm: Arm, scores: Sequence[SeedScore], seeds: Sequence[int]
) -> list[QuestionScores] | None:
    steps = {score.seed: score.step for score in scores}
    runs = {run.seed: run for run in arm.runs}
    rows = []
    for seed in seeds:
        step = steps[seed]
        row = None if step is None else runs[seed].scores_at(step)
        if row is None:
            return None
        rows.append(row)
    return rows


def _with_family(pairs: Sequence[Versus | None]) -> tuple[list[Versus | None], int]:
    """Holm's p over all comparisons, and what each could detect at the level it needs at worst."""
    p = [math.nan if pair is None else pair.difference.p for pair in pairs]
    family = sum(not math.isnan(x) for x in p)
    done: list[Versus | None] = []
    for pair, adjusted in zip(pairs, stats.holm(p), strict=True):
        if pair is None:
            done.append(None)
            continue
        d = pair.difference
        able = math.nan if math.isnan(d.p) else stats.detectable(d.se, d.df, ALPHA / family)
        done.append(replace(pair, p_holm=adjusted, mde=able))
    return done, family


def verdict_of(versus: Versus | None, direction: str) -> Verdict:
    """The word for a comparison."""
    if versus is None:
        return Verdict.CONTROL
    d, num = versus.difference, min(versus.num_seeds)
    if math.isnan(d.mean):
        return Verdict.NO_SCORE
    if num == 1:
        return Verdict.ANECDOTE
    if d.se != d.se:
        return Verdict.IDENTICAL if d.mean == 0 else Verdict.NO_SPREAD
    if num < MIN_SEEDS:
        return Verdict.INTERVAL_ONLY
    if not versus.p_holm <= ALPHA:
        return Verdict.NONE
    if direction == "none":
        return Verdict.HIGHER if d.mean > 0 else Verdict.LOWER
    return Verdict.BETTER if (d.mean > 0) == (direction == "higher") else Verdict.WORSE


def _result(
    arm: Arm,
    control: Arm,
    scores: Sequence[SeedScore],
    versus: Versus | None,
    metric: str,
    direction: str,
    where: str,
) -> ArmResult:
    values = np.array([s.score for s in scores if not math.isnan(s.score)])
    scored = [run for run, s in zip(arm.runs, scores, strict=True) if not math.isnan(s.score)]
    limit = {s.seed: s.step for s in scores}
    verdict = verdict_of(versus, direction)
    if versus is None and not len(values):
        verdict = Verdict.NO_SCORE
    return ArmResult(
        name=arm.name,
        changes=grouping.recipe_changes(control.leaves, arm.leaves),
        seeds=tuple(scores),
        missing=arm.missing,
        score=stats.mean_interval(values),
        sd=float(values.std(ddof=1)) if len(values) > 1 else math.nan,
        verdict=verdict,
        versus=versus,
        health=mean_health([health(run, limit[run.seed]) for run in scored or arm.runs]),
        by_step=curves.by_step(scored, metric),
        by_tokens=curves.by_tokens(scored, metric),
        health_curves={key: curves.by_step(scored, key) for key in CURVES if key != metric},
    )


def _with_areas(results: list[ArmResult], arms: Sequence[Arm], metric: str) -> list[ArmResult]:
    """Each arm's mean height of the curve over tokens, up to what every scored run sampled."""
    lines = [
        [
            curves.token_points(run, metric)
            for run, s in zip(arm.runs, result.seeds, strict=True)
            if not math.isnan(s.score)
        ]
        for arm, result in zip(arms, results, strict=True)
    ]
    ends = [points[-1][0] for row in lines for points in row if len(points) > 1]
    done = []
    for result, row in zip(results, lines, strict=True):
        areas = [curves.area(points, min(ends)) for points in row] if ends else []
        mean = stats.mean_interval(areas).mean
        done.append(replace(result, health={**result.health, "area": mean}))
    return done


def _measure_notes(arms: Sequence[Arm], control: Arm) -> list[str]:
    """Recipe keys of the axis that change how the evaluation samples, too."""
    changed = {key for arm in arms for key in grouping.recipe_changes(control.leaves, arm.leaves)}
    shared = sorted(changed & _ALSO_IN_EVALUATION)
    if not shared:
        return []
    return [
        f"the arms differ in {' and '.join(shared)}, with which the held-out answers are sampled "
        "too: the difference is of training and sampling together"
    ]
