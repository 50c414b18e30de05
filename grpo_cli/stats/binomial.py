"""Intervals of a mean over questions that were sampled several times each, few or related.

Dims: Q questions, C clusters of related questions, K samples per question. Pure numpy and scipy.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from grpo_cli.stats.interval import Interval

_LOGIT_MEAN = np.linspace(-9.0, 9.0, 181)
_LOG_SIZE = np.linspace(-4.0, 6.0, 51)


def clustered_interval(
    values_Q: ArrayLike, clusters_Q: Sequence[str], confidence: float = 0.95
) -> Interval:
    """Interval of the mean of `values_Q`, whose questions come in clusters; NaN values left out.

    The standard error is clustered (Miller 2024, arXiv:2411.00640, Section 2.2) with the factor
    C / (C - 1) for few clusters, and the t quantile has C - 1 degrees of freedom. With one question
    a cluster it is the ordinary t interval. NaN bounds below two clusters.

    Raises:
        ValueError: not one cluster for every value.
    """
    from scipy.special import stdtrit

    x = np.asarray(values_Q, dtype=np.float64)
    if len(x) != len(clusters_Q):
        raise ValueError(f"{len(x)} values, {len(clusters_Q)} clusters")
    known = ~np.isnan(x)
    names = [name for name, kept in zip(clusters_Q, known.tolist(), strict=True) if kept]
    x = x[known]
    if not len(x):
        return Interval(math.nan, math.nan, math.nan, 0)
    mean = float(x.mean())
    index = {name: i for i, name in enumerate(dict.fromkeys(names))}
    num = len(index)
    if num < 2:
        return Interval(mean, math.nan, math.nan, len(x))
    sum_C = np.zeros(num)
    np.add.at(sum_C, [index[name] for name in names], x - mean)
    se = math.sqrt(num / (num - 1) * float((sum_C**2).sum())) / len(x)
    half = float(stdtrit(num - 1, (1 + confidence) / 2)) * se
    return Interval(mean, mean - half, mean + half, len(x))


class BetaBinomial:
    """What counts of right samples say of a population of questions: a posterior on a grid.

    Pass rates of questions are draws from a beta distribution with mean m and size d (a = m d,
    b = (1 - m) d); m is uniform and d is Gamma(1, 1) beforehand. This is the model for repeated
    questions of Bowyer, Aitchison and Ivanova 2025 (arXiv:2503.01747), worked out on a fixed grid
    in place of random draws, so that the same counts give the same bits. Right for few questions,
    where a normal interval is too narrow.
    """

    def __init__(self, counts_Q: Sequence[tuple[int, int]]) -> None:
        """Take (right, samples) of every question; questions without a sample say nothing.

        Raises:
            ValueError: more right than samples.
        """
        from scipy.special import betaln

        if any(not 0 <= right <= total for right, total in counts_Q):
            raise ValueError("a question has more right samples than samples")
        mean = 1 / (1 + np.exp(-_LOGIT_MEAN))[:, None]
        size = np.exp(_LOG_SIZE)[None, :]
        a, b = mean * size, (1 - mean) * size
        # Prior densities times the steps of a grid that is even in logit m and in log d.
        log = np.log(mean * (1 - mean)) + np.log(size) - size
        for (right, total), times in Counter(counts_Q).items():
            log = log + times * (betaln(right + a, total - right + b) - betaln(a, b))
        weight = np.exp(log - log.max()).sum(axis=1)
        self._weight: NDArray[np.float64] = weight / weight.sum()

    def bounds(self, confidence: float = 0.95) -> tuple[float, float]:
        """Equal-tailed credible bounds of the population's mean pass rate."""
        below = self._weight.cumsum() - self._weight / 2
        tail = (1 - confidence) / 2
        low, high = np.interp([tail, 1 - tail], below, 1 / (1 + np.exp(-_LOGIT_MEAN)))
        return float(low), float(high)
