"""Do the intervals cover and do the tests keep their level? Seeded simulations of whole studies."""

from __future__ import annotations

import numpy as np
import pytest

from grpo_cli import stats

STUDIES = 4000
"""One simulated study has one comparison; the share of 4000 is known to 0.7 points."""


def covers(interval: stats.Interval | stats.Difference, truth: float) -> bool:
    return interval.low <= truth <= interval.high


@pytest.mark.parametrize("num_seeds", [3, 5, 10])
@pytest.mark.parametrize("paired", [False, True], ids=["welch", "paired"])
def test_method_level_intervals_cover(num_seeds: int, paired: bool) -> None:
    """Accuracies as a training run gives them: seed noise, then 200 questions x 4 samples."""
    rng = np.random.default_rng(num_seeds)
    shared = rng.normal(0, 0.02, (STUDIES, num_seeds)) if paired else 0.0
    rate_a = 0.45 + shared + rng.normal(0, 0.02, (STUDIES, num_seeds))
    rate_b = 0.40 + shared + rng.normal(0, 0.02, (STUDIES, num_seeds))
    a, b = (rng.binomial(800, rate) / 800 for rate in (rate_a, rate_b))
    test = stats.paired_t if paired else stats.welch
    hits = sum(covers(test(a[i], b[i]), 0.05) for i in range(STUDIES))
    assert 0.93 <= hits / STUDIES <= 0.97


@pytest.mark.parametrize("num_seeds", [3, 5, 10])
def test_the_interval_of_one_arm_covers(num_seeds: int) -> None:
    rng = np.random.default_rng(num_seeds)
    values = rng.normal(0.4, 0.03, (STUDIES, num_seeds))
    hits = sum(covers(stats.mean_interval(row), 0.4) for row in values)
    assert 0.93 <= hits / STUDIES <= 0.97


@pytest.mark.parametrize("num_seeds", [3, 5, 10])
@pytest.mark.parametrize("seed_sd", [0.15, 0.5], ids=["few-seed-effects", "strong-seed-effects"])
def test_the_crossed_bootstrap_covers_at_least(num_seeds: int, seed_sd: float) -> None:
    """Logits: question SD 1.5, seed x question SD 0.3, 100 questions, 4 samples."""
    rng = np.random.default_rng(10 * num_seeds)
    studies = 400
    hits = 0
    for _ in range(studies):
        question = rng.normal(0, 1.5, 100)
        arms = []
        for _arm in range(2):
            logit = question + rng.normal(0, seed_sd, (num_seeds, 1))
            logit = logit + rng.normal(0, 0.3, (num_seeds, 100))
            arms.append(rng.binomial(4, 1 / (1 + np.exp(-logit))) / 4)
        hits += covers(stats.crossed_bootstrap(*arms, rng, num_resamples=300), 0.0)
    assert hits / studies >= 0.93


def test_pooling_questions_over_seeds_would_not_cover() -> None:
    """Why the unit is the seed: the same studies with questions as the unit."""
    rng = np.random.default_rng(0)
    hits = 0
    for _ in range(400):
        question = rng.normal(0, 1.5, 200)
        means = []
        for _arm in range(2):
            logit = question + rng.normal(0, 0.3, (5, 1))
            means.append((rng.binomial(4, 1 / (1 + np.exp(-logit))) / 4).mean(axis=0))
        hits += covers(stats.mean_interval(means[0] - means[1]), 0.0)
    assert hits / 400 < 0.7


@pytest.mark.parametrize("num_seeds", [3, 5, 10])
@pytest.mark.parametrize("paired", [False, True], ids=["welch", "paired"])
def test_family_wise_error_of_four_null_arms(num_seeds: int, paired: bool) -> None:
    """Four arms against one control: their tests share its seeds, and Holm need not care."""
    rng = np.random.default_rng(7)
    test = stats.paired_t if paired else stats.welch
    raw = adjusted = 0
    for _ in range(STUDIES):
        shared = rng.normal(0, 0.02, num_seeds) if paired else 0.0
        control, *arms = shared + rng.normal(0.4, 0.02, (5, num_seeds))
        p = [test(arm, control).p for arm in arms]
        raw += min(p) <= 0.05
        adjusted += min(stats.holm(p)) <= 0.05
    assert adjusted / STUDIES <= 0.06
    assert raw / STUDIES > 0.09  # else the simulation could not show anything


@pytest.mark.parametrize(("num_a", "num_b"), [(3, 3), (5, 5), (3, 8)])
def test_prob_above_covers(num_a: int, num_b: int) -> None:
    rng = np.random.default_rng(1)
    truth = 0.7602499389065233  # Phi(1 / sqrt(2))
    hits = sum(
        covers(stats.prob_above(rng.normal(1, 1, num_a), rng.normal(0, 1, num_b)), truth)
        for _ in range(2000)
    )
    assert 0.92 <= hits / 2000 <= 0.99


def test_the_stated_power_is_reached() -> None:
    rng = np.random.default_rng(5)
    effect = stats.mde(1.0, 5)
    a, b = rng.normal(effect, 1, (STUDIES, 5)), rng.normal(0, 1, (STUDIES, 5))
    found = sum(stats.welch(a[i], b[i]).p <= 0.05 for i in range(STUDIES))
    assert found / STUDIES == pytest.approx(0.8, abs=0.04)  # Welch loses a little


# --- the crossed bootstrap itself ----------------------------------------------------------------


def small(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    return rng.random((3, 20)), rng.random((3, 20))


def test_the_bootstrap_is_a_function_of_its_generator() -> None:
    a, b = small(np.random.default_rng(0))
    first, again, other = (
        stats.crossed_bootstrap(a, b, np.random.default_rng(seed)) for seed in (1, 1, 2)
    )
    assert first == again != other
    assert first.mean == pytest.approx(a.mean() - b.mean())


def test_pairing_takes_out_what_the_seeds_share() -> None:
    rng = np.random.default_rng(0)
    shared = rng.normal(0, 0.2, (6, 1))
    question = rng.random((1, 50))
    a, b = (question + shared + rng.normal(0, 0.01, (6, 50)) for _ in range(2))
    widths = []
    for paired in (True, False):
        found = stats.crossed_bootstrap(a, b, np.random.default_rng(1), paired=paired)
        widths.append(found.high - found.low)
    assert widths[0] < widths[1] / 5


def test_questions_of_one_cluster_stay_together() -> None:
    rng = np.random.default_rng(0)
    effect = np.repeat(rng.normal(0, 0.3, 10), 10)
    a = effect + rng.normal(0, 0.05, (5, 100))
    b = rng.normal(0, 0.05, (5, 100))
    clusters = [str(i // 10) for i in range(100)]
    widths = []
    for names in (clusters, None):
        found = stats.crossed_bootstrap(a, b, np.random.default_rng(1), clusters=names)
        widths.append(found.high - found.low)
    assert widths[0] > 2 * widths[1]


def test_questions_that_an_arm_lacks_are_left_out() -> None:
    a, b = small(np.random.default_rng(0))
    a[1, 4] = np.nan
    found = stats.crossed_bootstrap(a, b, np.random.default_rng(1))
    kept = np.delete(np.arange(20), 4)
    assert found.n == 19
    assert found.mean == pytest.approx(a[:, kept].mean() - b[:, kept].mean())


def test_one_seed_or_no_question_has_no_interval() -> None:
    rng = np.random.default_rng(0)
    assert np.isnan(stats.crossed_bootstrap(rng.random((1, 9)), rng.random((3, 9)), rng).low)
    assert np.isnan(stats.crossed_bootstrap(np.empty((3, 0)), np.empty((3, 0)), rng).mean)
    with pytest.raises(ValueError, match="questions"):
        stats.crossed_bootstrap(rng.random((3, 9)), rng.random((3, 8)), rng)
    with pytest.raises(ValueError, match="seeds"):
        stats.crossed_bootstrap(rng.random((3, 9)), rng.random((2, 9)), rng, paired=True)
