"""`grpo_cli.stats` against scipy and statsmodels, and against closed forms."""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import pytest
import scipy.stats as st

from grpo_cli import stats

CLOSE = {"rel": 1e-10, "abs": 1e-10}
SHARES = [(0, 10), (1, 10), (5, 10), (10, 10), (37, 300), (299, 300)]


@pytest.fixture(scope="module")
def seeds() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    return rng.normal(0.41, 0.02, 5), rng.normal(0.38, 0.05, 5)


# --- intervals of a share and of a mean ----------------------------------------------------------


@pytest.mark.parametrize(("k", "n"), SHARES)
@pytest.mark.parametrize("confidence", [0.9, 0.95])
def test_shares_agree_with_scipy(k: int, n: int, confidence: float) -> None:
    for ours, method in ((stats.wilson, "wilson"), (stats.clopper_pearson, "exact")):
        theirs = st.binomtest(k, n).proportion_ci(confidence, method=method)
        found = ours(k, n, confidence)
        assert (found.low, found.high) == pytest.approx((theirs.low, theirs.high), **CLOSE)
        assert (found.mean, found.n) == (k / n, n)


@pytest.mark.parametrize(("k", "n"), SHARES)
def test_shares_agree_with_statsmodels(k: int, n: int) -> None:
    proportion = pytest.importorskip("statsmodels.stats.proportion")
    for ours, method in ((stats.wilson, "wilson"), (stats.clopper_pearson, "beta")):
        found = ours(k, n)
        theirs = proportion.proportion_confint(k, n, method=method)
        assert (found.low, found.high) == pytest.approx(theirs, **CLOSE)


def test_shares_at_the_ends_and_of_nothing() -> None:
    assert stats.wilson(0, 10).low == 0
    assert stats.clopper_pearson(7, 7).high == 1
    assert math.isnan(stats.wilson(0, 0).low)
    assert math.isnan(stats.clopper_pearson(0, 0).high)
    for ours in (stats.wilson, stats.clopper_pearson):
        with pytest.raises(ValueError, match="11 of 10"):
            ours(11, 10)


def test_t_interval_agrees_with_scipy(seeds: tuple[np.ndarray, np.ndarray]) -> None:
    found = stats.mean_interval(seeds[0])
    theirs = st.ttest_1samp(seeds[0], 0).confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((theirs.low, theirs.high), **CLOSE)


@pytest.mark.parametrize("n", [1, 3, 4, 5, 8, 21])
def test_iqm_agrees_with_scipy(n: int) -> None:
    values = np.random.default_rng(n).normal(size=n)
    assert stats.interquartile_mean(values) == pytest.approx(st.trim_mean(values, 0.25), **CLOSE)


# --- two arms ------------------------------------------------------------------------------------


def test_welch_agrees_with_scipy(seeds: tuple[np.ndarray, np.ndarray]) -> None:
    a, b = seeds[0], seeds[1][:4]
    found, theirs = stats.welch(a, b), st.ttest_ind(a, b, equal_var=False)
    bounds = theirs.confidence_interval(0.95)
    assert found.p == pytest.approx(theirs.pvalue, **CLOSE)
    assert found.df == pytest.approx(theirs.df, **CLOSE)
    assert (found.low, found.high) == pytest.approx((bounds.low, bounds.high), **CLOSE)
    assert found.mean == pytest.approx(a.mean() - b.mean(), **CLOSE)


def test_welch_agrees_with_statsmodels(seeds: tuple[np.ndarray, np.ndarray]) -> None:
    weights = pytest.importorskip("statsmodels.stats.weightstats")
    means = weights.CompareMeans(weights.DescrStatsW(seeds[0]), weights.DescrStatsW(seeds[1]))
    found = stats.welch(*seeds)
    _, p, df = means.ttest_ind(usevar="unequal")
    assert (found.p, found.df) == pytest.approx((p, df), **CLOSE)
    assert (found.low, found.high) == pytest.approx(means.tconfint_diff(usevar="unequal"), **CLOSE)


def test_paired_t_agrees_with_scipy(seeds: tuple[np.ndarray, np.ndarray]) -> None:
    found, theirs = stats.paired_t(*seeds), st.ttest_rel(*seeds)
    bounds = theirs.confidence_interval(0.95)
    assert found.p == pytest.approx(theirs.pvalue, **CLOSE)
    assert (found.low, found.high) == pytest.approx((bounds.low, bounds.high), **CLOSE)
    with_gap = stats.paired_t([*seeds[0], 1.0], [*seeds[1], math.nan])
    assert with_gap == found


def test_no_spread_between_seeds_is_no_test() -> None:
    """Else a constant would be infinitely significant; rounding must not make up a spread."""
    for found in (stats.welch([0.1 * 3] * 3, [0.1] * 3), stats.paired_t([0.4, 0.7], [0.3, 0.6])):
        assert math.isnan(found.p)
        assert math.isnan(found.low)
        assert found.mean > 0
    assert math.isnan(stats.welch([0.4], [0.3, 0.2]).p)


def test_permutations_agree_with_scipy(seeds: tuple[np.ndarray, np.ndarray]) -> None:
    def mean_difference(x: np.ndarray, y: np.ndarray, axis: int) -> np.ndarray:
        return x.mean(axis=axis) - y.mean(axis=axis)

    independent = st.permutation_test(seeds, mean_difference, vectorized=True, n_resamples=np.inf)
    assert stats.permutation_p(*seeds) == pytest.approx(independent.pvalue, **CLOSE)
    flips = st.permutation_test(
        seeds, mean_difference, permutation_type="samples", n_resamples=np.inf, vectorized=True
    )
    assert stats.sign_flip_p(*seeds) == pytest.approx(flips.pvalue, **CLOSE)


def test_unequal_permutations_by_hand() -> None:
    a, b = [3.0, 5.0], [1.0, 2.0, 2.5]
    both = [*a, *b]
    observed = abs(sum(a) / 2 - sum(b) / 3)
    hits = [
        abs(sum(c) / 2 - (sum(both) - sum(c)) / 3) >= observed - 1e-12
        for c in combinations(both, 2)
    ]
    assert stats.permutation_p(a, b) == pytest.approx(sum(hits) / 10, **CLOSE)


def test_the_smallest_p_of_a_design() -> None:
    assert stats.smallest_p(3, 3) == stats.permutation_p([4, 5, 6], [1, 2, 3]) == 0.1
    assert stats.smallest_p(5) == stats.sign_flip_p([1, 2, 3, 4, 5], [0] * 5) == 0.0625
    assert stats.smallest_p(2, 3) == stats.permutation_p([8, 9], [1, 2, 3]) == 0.1


def test_many_seeds_need_a_generator() -> None:
    rng = np.random.default_rng(3)
    a, b = rng.normal(0.5, 1, 20), rng.normal(0, 1, 20)
    for test in (stats.permutation_p, stats.sign_flip_p):
        with pytest.raises(ValueError, match="too many"):
            test(a, b)
        drawn = test(a, b, np.random.default_rng(1))
        assert drawn == test(a, b, np.random.default_rng(1))
        t_test = stats.welch if test is stats.permutation_p else stats.paired_t
        assert drawn == pytest.approx(t_test(a, b).p, abs=0.02)


def test_holm_agrees_with_statsmodels() -> None:
    multitest = pytest.importorskip("statsmodels.stats.multitest")
    p = [0.01, 0.04, 0.03, 0.005, 0.6, 0.03]
    theirs = multitest.multipletests(p, method="holm")[1].tolist()
    assert stats.holm(p) == pytest.approx(theirs, **CLOSE)


def test_holm_by_hand() -> None:
    assert stats.holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    with_gap = stats.holm([0.01, math.nan, 0.03])
    assert with_gap[0] == pytest.approx(0.02)
    assert math.isnan(with_gap[1])


def test_prob_above_is_the_mann_whitney_share(seeds: tuple[np.ndarray, np.ndarray]) -> None:
    found = stats.prob_above(*seeds)
    assert found.mean == pytest.approx(st.mannwhitneyu(*seeds).statistic / 25, **CLOSE)
    assert 0 < found.low < found.mean < found.high < 1
    apart = stats.prob_above([4, 5, 6], [1, 2, 3])
    assert apart.mean == apart.high == 1
    assert 0.3 < apart.low < 0.8
    assert stats.prob_above([1, 2], [1, 2]).mean == 0.5
    assert stats.prob_above_paired([2, 2, 1], [1, 1, 1]).mean == pytest.approx(2.5 / 3)


# --- design --------------------------------------------------------------------------------------


def test_mde_of_the_usual_designs() -> None:
    """In units of the seed SD, at 80 % power."""
    designs = [2, 3, 5, 8, 10, 20]
    table = {
        (1, False): [5.65, 3.07, 2.02, 1.51, 1.32, 0.91],
        (5, False): [12.7, 4.80, 2.74, 1.94, 1.69, 1.13],
        (1, True): [11.6, 3.26, 1.68, 1.16, 1.00, 0.66],
    }
    for (family, paired), values in table.items():
        found = [stats.mde(1, n, family=family, paired=paired) for n in designs]
        assert found == pytest.approx(values, rel=5e-3), (family, paired)
    assert math.isnan(stats.mde(1, 1))
    assert stats.mde(0.02, 5) == pytest.approx(0.02 * stats.mde(1, 5))


def test_power_agrees_with_scipy_and_statsmodels() -> None:
    power = pytest.importorskip("statsmodels.stats.power")
    theirs = power.TTestIndPower().power(2.0, 5, 0.05)
    assert stats.t_power(2.0, math.sqrt(2 / 5), 8) == pytest.approx(theirs, abs=1e-8)
    critical = st.t.ppf(0.975, 8)
    nct = st.nct.sf(critical, 8, 1.5) + st.nct.cdf(-critical, 8, 1.5)
    assert stats.t_power(1.5, 1.0, 8) == pytest.approx(nct, abs=1e-8)


# --- several samples of one question -------------------------------------------------------------


def test_pass_and_all_at_k_are_shares_of_subsets() -> None:
    for n in range(1, 7):
        for c in range(n + 1):
            right = [1] * c + [0] * (n - c)
            for k in range(1, n + 1):
                subsets = list(combinations(right, k))
                any_right = sum(max(s) for s in subsets) / len(subsets)
                all_right = sum(min(s) for s in subsets) / len(subsets)
                assert stats.pass_at_k(n, c, k) == pytest.approx(any_right, **CLOSE)
                assert stats.all_at_k(n, c, k) == pytest.approx(all_right, **CLOSE)
            assert math.isnan(stats.pass_at_k(n, c, n + 1))
            assert math.isnan(stats.all_at_k(n, c, n + 1))


def test_avg_at_k() -> None:
    assert stats.avg_at_k([1, 0, 0.5, 0.5], 4) == 0.5
    assert math.isnan(stats.avg_at_k([1, 0], 4))


def test_maj_at_k() -> None:
    answers, scores = ["7", "7", "8", None], [1.0, 1.0, 0.0, 0.0]
    assert stats.maj_at_k(answers, scores, 4) == 1
    assert stats.maj_at_k(["7", "8"], [1, 0], 2) == 0.5  # a tie
    assert stats.maj_at_k([None, None], [0, 0], 2) == 0
    assert stats.maj_at_k(answers, scores, 1) == pytest.approx(0.5)
    # Pairs: 77 right, 7-8 a tie twice, 7-None right twice, 8-None wrong.
    assert stats.maj_at_k(answers, scores, 2) == pytest.approx((1 + 0.5 * 2 + 2 + 0) / 6)
    assert math.isnan(stats.maj_at_k(answers, scores, 5))


def test_maj_at_k_of_many_samples_needs_a_generator() -> None:
    answers = ["a"] * 20 + ["b"] * 12
    scores = [1.0] * 20 + [0.0] * 12
    with pytest.raises(ValueError, match="too many"):
        stats.maj_at_k(answers, scores, 8)
    drawn = stats.maj_at_k(answers, scores, 8, np.random.default_rng(0))
    b = st.hypergeom(32, 12, 8)
    assert drawn == pytest.approx(b.cdf(3) + 0.5 * b.pmf(4), abs=0.01)
