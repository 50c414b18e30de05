"""Confidence intervals of a mean and of a share. Pure numpy and scipy.

Dims: Q questions, K samples per question.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean with its two-sided confidence interval. NaN where the data cannot say.

    Example:
        Interval(mean=0.412, low=0.371, high=0.453, n=200)
    """

    mean: float
    low: float
    high: float
    n: int

    @property
    def excludes_zero(self) -> bool:
        """True when the whole interval lies on one side of 0."""
        return self.low > 0 or self.high < 0


def mean_interval(values: ArrayLike, confidence: float = 0.95) -> Interval:
    """Student t interval of the mean of independent units; NaN entries are left out.

    For accuracies the unit is the *question* (average its K samples first), so the interval holds
    both sampling and question noise (Miller 2024, arXiv:2411.00640, Section 3). For a statement
    about a method the unit is the *training seed*.
    """
    from scipy.special import stdtrit

    x = np.asarray(values, dtype=np.float64)
    x = x[~np.isnan(x)]
    n = len(x)
    if n == 0:
        return Interval(float("nan"), float("nan"), float("nan"), 0)
    mean = float(x.mean())
    if n == 1:
        return Interval(mean, float("nan"), float("nan"), 1)
    half = float(stdtrit(n - 1, (1 + confidence) / 2) * x.std(ddof=1) / np.sqrt(n))
    return Interval(mean, mean - half, mean + half, n)


def wilson(k: float, n: int, confidence: float = 0.95) -> Interval:
    """Wilson score interval of the share k / n (Wilson 1927); `mean` is k / n itself.

    Right for a few hundred yes-or-no outcomes, also near 0 and 1, where a normal interval is too
    narrow (Bowyer et al. 2025, arXiv:2503.01747). `k` may be a half where ties count a half.

    Raises:
        ValueError: k is not within 0..n.

    Example:
        wilson(0, 10)  # Interval(mean=0.0, low=0.0, high=0.278, n=10)
    """
    from scipy.special import ndtri

    _check_count(k, n)
    if n == 0:
        return Interval(math.nan, math.nan, math.nan, 0)
    z2 = float(ndtri((1 + confidence) / 2)) ** 2
    share = k / n
    center = (k + z2 / 2) / (n + z2)
    half = math.sqrt(z2) / (n + z2) * math.sqrt(n * share * (1 - share) + z2 / 4)
    # Rounding must not leave 1e-18 where the bound is 0.
    low = 0.0 if k == 0 else max(0.0, center - half)
    high = 1.0 if k == n else min(1.0, center + half)
    return Interval(share, low, high, n)


def clopper_pearson(k: int, n: int, confidence: float = 0.95) -> Interval:
    """Exact interval of the share k / n (Clopper and Pearson 1934): covers at least `confidence`.

    Wider than `wilson`; the one to use for a guarantee such as "at most 3 % false positives".

    Raises:
        ValueError: k is not within 0..n.

    Example:
        clopper_pearson(0, 10)  # Interval(mean=0.0, low=0.0, high=0.308, n=10)
    """
    from scipy.special import betaincinv

    _check_count(k, n)
    if n == 0:
        return Interval(math.nan, math.nan, math.nan, 0)
    tail = (1 - confidence) / 2
    low = 0.0 if k == 0 else float(betaincinv(k, n - k + 1, tail))
    high = 1.0 if k == n else float(betaincinv(k + 1, n - k, 1 - tail))
    return Interval(k / n, low, high, n)


def interquartile_mean(values: ArrayLike) -> float:
    """Mean of the middle half: a quarter of the values is cut off at each end, rounded down.

    For several tasks times several seeds (Agarwal et al. 2021, arXiv:2108.13264); of one task and
    five seeds it averages three numbers, so the mean is better there. NaN entries are left out.
    """
    x = np.asarray(values, dtype=np.float64).ravel()
    x = np.sort(x[~np.isnan(x)])
    cut = len(x) // 4
    middle = x[cut : len(x) - cut]
    return float(middle.mean()) if len(middle) else math.nan


def _check_count(k: float, n: int) -> None:
    if not 0 <= k <= n:
        raise ValueError(f"{k} of {n} is not a share")
