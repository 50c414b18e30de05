"""avg@k, pass@k and maj@k against plain recomputation."""

from __future__ import annotations

import math
from itertools import combinations
from statistics import mean

import numpy as np
import pytest

from grpo_cli.measure.figures import (
    BETA_BINOMIAL,
    CLUSTERED,
    STUDENT,
    WILSON,
    difference,
    summarise,
)
from grpo_cli.measure.rows import Sampled
from grpo_cli.stats import wilson
from grpo_cli.types import Finish, Status


def row(
    question: str, sample: int, score: float, parsed: str | None = None, cluster: str | None = None
) -> Sampled:
    status = Status.ERROR if math.isnan(score) else Status.OK
    return Sampled(
        question, cluster or question, sample, score, status, parsed, 10, Finish.STOP, "text"
    )


def drawn(num_questions: int, k: int, seed: int = 0) -> list[Sampled]:
    rng = np.random.default_rng(seed)
    rates = rng.random(num_questions)
    return [
        row(f"q{q}", i, float(rng.random() < rates[q]), str(rng.integers(3)))
        for q in range(num_questions)
        for i in range(k)
    ]


@pytest.mark.parametrize("k", [1, 2, 5, 6])
def test_avg_and_pass_are_those_of_all_subsets(k: int) -> None:
    rows = drawn(12, k)
    found = summarise(rows, k)
    by: dict[str, list[float]] = {}
    for r in rows:
        by.setdefault(r.question_id, []).append(r.score)
    assert found.accuracy.interval.mean == pytest.approx(mean(mean(s) for s in by.values()))
    sizes = [int(f.name.partition("@")[2]) for f in found.figures if f.name.startswith("pass")]
    assert sizes == sorted({s for s in (1, 2, 4, k) if s <= k})
    for size in sizes:
        want = mean(mean(max(subset) for subset in combinations(s, size)) for s in by.values())
        figure = found.figure(f"pass@{size}")
        assert figure is not None
        assert figure.interval.mean == pytest.approx(want)
        assert figure.interval.low <= want <= figure.interval.high


def test_the_method_fits_the_number_of_questions_and_samples() -> None:
    assert summarise(drawn(20, 1), 1).accuracy.method == WILSON
    assert summarise(drawn(20, 4), 4).accuracy.method == BETA_BINOMIAL
    assert summarise(drawn(300, 2), 2).accuracy.method == CLUSTERED
    partial = [row(f"q{q}", 0, 0.5) for q in range(5)]
    assert summarise(partial, 1).accuracy.method == STUDENT
    related = [row(f"q{q}", 0, q % 3 == 0, cluster=f"c{q // 4}") for q in range(20)]
    assert summarise(related, 1).accuracy.method == CLUSTERED


@pytest.mark.parametrize("right", [0.0, 1.0])
@pytest.mark.parametrize("per_cluster", [1, 4])
def test_many_questions_that_agree_do_not_give_an_interval_of_width_0(
    right: float, per_cluster: int
) -> None:
    rows = [row(f"q{q}", i, right, "1", f"c{q // per_cluster}") for q in range(400) for i in (0, 1)]
    for figure in summarise(rows, 2).figures:
        i = figure.interval
        assert (figure.method, i.mean, i.n) == (WILSON, right, 400)
        assert i.low == pytest.approx(wilson(right * 400 // per_cluster, 400 // per_cluster).low)
        assert 0.005 < i.high - i.low < 0.05


def test_the_interval_of_a_rare_success_stays_within_0_and_1() -> None:
    rows = [row(f"q{q}", 0, float(q == 0)) for q in range(400)]
    i = summarise(rows, 1).accuracy.interval
    assert 0 < i.low < i.mean < i.high < 0.02


def test_the_majority_answer_counts_and_unread_answers_do_not_vote() -> None:
    rows = [row("q", 0, 1.0, "4"), row("q", 1, 1.0, "4"), row("q", 2, 0.0, "5")]
    rows += [row("r", 0, 1.0, "4"), row("r", 1, 0.0, None), row("r", 2, 0.0, None)]
    rows += [row("s", 0, 0.0, "1"), row("s", 1, 0.0, "1"), row("s", 2, 1.0, "2")]
    figure = summarise(rows, 3).figure("maj@3")
    assert figure is not None
    assert figure.interval.mean == pytest.approx(2 / 3)


def test_a_missing_verdict_is_no_wrong_answer() -> None:
    rows = [row("q", 0, 1.0), row("q", 1, math.nan), row("r", 0, math.nan), row("r", 1, math.nan)]
    found = summarise(rows, 2)
    assert found.accuracy.interval.mean == 1.0
    assert found.without_verdict == 1
    assert found.verifier_failed_frac == 0.75
    pair = found.figure("pass@2")
    assert pair is not None
    assert pair.interval.n == 0, "one sample cannot say what two would do"


def test_differences_are_paired_by_question() -> None:
    ours = [row(f"q{q}", 0, 1.0) for q in range(4)] + [row("only ours", 0, 0.0)]
    theirs = [row(f"q{q}", 0, float(q > 0)) for q in range(4)]
    figure = difference(ours, theirs)
    assert figure.interval.n == 4
    assert figure.interval.mean == pytest.approx(0.25)


@pytest.mark.parametrize("num_questions", [40, 400])
def test_a_difference_that_is_the_same_everywhere_has_no_interval_of_width_0(
    num_questions: int,
) -> None:
    ours = [row(f"q{q}", 0, 1.0) for q in range(num_questions)]
    theirs = [row(f"q{q}", 0, 0.0) for q in range(num_questions)]
    for others, mean_difference in ((theirs, 1.0), (ours, 0.0)):
        i = difference(ours, others).interval
        assert (i.mean, i.n) == (mean_difference, num_questions)
        assert math.isnan(i.low)
        assert math.isnan(i.high)
