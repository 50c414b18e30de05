"""The score of a run: which step counts, and what it has there."""

from __future__ import annotations

import math
from collections.abc import Sequence

from grpo_cli.compare.model import Arm, RunRecord, SeedScore
from grpo_cli.errors import error
from grpo_cli.recipe.problems import did_you_mean
from grpo_cli.seeds import seed63

ACCURACY = "eval/accuracy"
BEST = "best-on-val"
FINAL = "final"

_LOWER = ("truncated_frac", "unparsed_frac", "error_frac", "timeout_frac")
_HIGHER = ("accuracy", "pass_at_", "avg_at_", "maj_at_", "reward/mean")


def direction_of(metric: str) -> str:
    """`higher` or `lower` for a metric in which that is better, else `none`."""
    name = metric.rpartition("/")[2]
    if name.endswith(_LOWER):
        return "lower"
    is_up = metric in _HIGHER or name.startswith(_HIGHER)
    return "higher" if is_up else "none"


def check_at(at: str) -> None:
    """Raise GR209 unless `at` is `final`, `best-on-val` or a step."""
    if at not in (FINAL, BEST) and not at.isdecimal():
        raise error("GR209", f"--at {at}", hint="use final, best-on-val or the number of a step")


def score_arm(arm: Arm, metric: str, at: str) -> tuple[SeedScore, ...]:
    """The score of every run of an arm; a run that did not finish has none at `final`."""
    return tuple(_score(run, metric, at) for run in arm.runs)


def check_scored(arms: Sequence[Arm], scores: Sequence[SeedScore], metric: str, at: str) -> None:
    """Raise GR233 when no run of any arm has a score, and say what there is."""
    if any(not math.isnan(score.score) for score in scores):
        return
    runs = [run for arm in arms for run in arm.runs]
    if not any(run.series(metric) for run in runs):
        names = sorted({key for run in runs for record in run.records for key in record.scalars})
        close = did_you_mean(metric, names)
        few = ", ".join(name for name in names if name.startswith("eval/"))
        raise error("GR233", f"no run has the metric {metric!r}", hint=close or f"there are: {few}")
    if at.isdecimal():
        steps = sorted({step for run in runs for step, _ in run.series(metric)})
        listed = ", ".join(str(step) for step in steps[-12:])
        raise error(
            "GR233", f"no run has {metric} at step {at}", hint=f"it was measured at: {listed}"
        )
    states = ", ".join(sorted({run.state for run in runs}))
    raise error(
        "GR233",
        f"no run has a score of {metric} at {at} (they are: {states})",
        hint="`grpo train` with the same words goes on with a run; `--at STEP` compares earlier",
    )


def _score(run: RunRecord, metric: str, at: str) -> SeedScore:
    series = run.series(metric)
    step: int | None = None
    score = math.nan
    if at == BEST:
        step, score = _best_on_val(run)
    elif at == FINAL:
        if run.state == "done" and series:
            step, score = series[-1]
    else:
        step = int(at)
        score = dict(series).get(step, math.nan)
    late = series[-1][1] if math.isnan(score) and series and run.state != "done" else math.nan
    return SeedScore(run.seed, score, step, run.state, run.place, run.reason, late)


def is_validation(question: str) -> bool:
    """Whether a held-out question picks checkpoints (the others score them): a fixed half."""
    return seed63("validation", question) % 2 == 0


def _best_on_val(run: RunRecord) -> tuple[int | None, float]:
    """The step that is best on one half of the questions, and its score on the other half.

    Taking the best of several checkpoints on the questions that judge it would be luck: the score
    of the chosen checkpoint is read only from questions that did not choose. The earliest wins a
    tie.
    """
    best: tuple[float, int, float] | None = None
    if run.state != "done":
        return None, math.nan
    for step, _ in run.series(ACCURACY):
        scores = run.scores_at(step)
        if scores is None:
            continue
        choose = [score for question, score in scores.items() if is_validation(question)]
        judge = [score for question, score in scores.items() if not is_validation(question)]
        if choose and judge:
            mean = sum(choose) / len(choose)
            if best is None or mean > best[0]:
                best = (mean, step, sum(judge) / len(judge))
    return (None, math.nan) if best is None else (best[1], best[2])
