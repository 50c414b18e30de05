"""Intervals and estimators. Pure numpy and scipy.

Dims: Q questions, K samples per question.
"""

from __future__ import annotations

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
    both sampling and question noise (Miller 2024, arXiv:2411.00640, Section 3).
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


def pass_at_k(num_samples: int, num_correct: int, k: int) -> float:
    """Unbiased pass@k = 1 - C(n-c, k) / C(n, k); NaN when n < k. Chen et al. 2021, Eq. 1.

    Example:
        pass_at_k(4, 1, 2) == 0.5
    """
    if num_samples < k:
        return float("nan")
    if num_samples - num_correct < k:
        return 1.0
    wrong = np.arange(num_samples - num_correct + 1, num_samples + 1)
    return float(1 - np.prod(1 - k / wrong))
