"""Intervals over few questions and over clusters of them."""

from __future__ import annotations

import math

import numpy as np
import pytest

from grpo_cli.stats import mean_interval
from grpo_cli.stats.binomial import BetaBinomial, clustered_interval


def test_clusters_of_one_give_the_ordinary_t_interval() -> None:
    x = np.random.default_rng(0).random(40)
    ours, theirs = clustered_interval(x, [str(i) for i in range(40)]), mean_interval(x)
    assert ours.low == pytest.approx(theirs.low, abs=1e-12)
    assert ours.high == pytest.approx(theirs.high, abs=1e-12)


def test_the_clustered_error_is_that_of_statsmodels() -> None:
    ols = pytest.importorskip("statsmodels.api").OLS
    rng = np.random.default_rng(1)
    groups = np.repeat(np.arange(30), 5)
    x = rng.random(150) + rng.normal(size=30)[groups]
    fit = ols(x, np.ones(150)).fit(cov_type="cluster", cov_kwds={"groups": groups}, use_t=True)
    low, high = fit.conf_int()[0]
    found = clustered_interval(x, [str(g) for g in groups])
    assert found.low == pytest.approx(low, rel=1e-9)
    assert found.high == pytest.approx(high, rel=1e-9)


def test_copies_of_a_question_in_one_cluster_do_not_narrow_the_interval() -> None:
    x = np.random.default_rng(2).random(25)
    once = clustered_interval(x, [str(i) for i in range(25)])
    tenfold = clustered_interval(np.repeat(x, 10), [str(i) for i in range(25) for _ in range(10)])
    assert tenfold.high - tenfold.low == pytest.approx(once.high - once.low, rel=1e-9)


def test_one_cluster_has_no_interval_and_nan_is_left_out() -> None:
    assert math.isnan(clustered_interval([0.1, 0.9], ["a", "a"]).low)
    assert clustered_interval([0.5, math.nan, 0.7], ["a", "b", "c"]).n == 2
    with pytest.raises(ValueError, match="3 values, 1 clusters"):
        clustered_interval([1, 2, 3], ["a"])


@pytest.mark.parametrize(("a", "b"), [(0.3, 0.7), (12.0, 18.0), (0.05, 0.95)])
def test_beta_binomial_bounds_cover_the_mean_of_the_population(a: float, b: float) -> None:
    rng = np.random.default_rng(3)
    hits = 0
    for _ in range(60):
        counts = rng.binomial(8, rng.beta(a, b, 20))
        low, high = BetaBinomial([(int(c), 8) for c in counts]).bounds()
        hits += low <= a / (a + b) <= high
    # Nominal 95 %: of 60 studies a true 95 % has fewer than 51 hits once in a thousand times.
    assert hits >= 51, hits


def test_beta_binomial_bounds_where_a_normal_interval_has_no_width() -> None:
    low, high = BetaBinomial([(0, 4)] * 10).bounds()
    assert low < 0.01
    assert 0.1 < high < 0.35
    with pytest.raises(ValueError, match="more right"):
        BetaBinomial([(5, 4)])
