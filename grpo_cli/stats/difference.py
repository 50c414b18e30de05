"""Differences between two arms over training seeds: t tests, permutation tests, Holm, P(A > B).

The unit is the seed. Dims: S seeds. Pure numpy and scipy.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from grpo_cli.stats.interval import Interval, wilson

MAX_PERMUTATIONS = 300_000
"""Most relabellings that an exact test goes through (10 against 10 seeds have 184756)."""


@dataclass(frozen=True, slots=True)
class Difference:
    """Mean of `a` minus mean of `b`, with its t interval and two-sided p.

    NaN where the data cannot say: fewer than two seeds, or no spread between seeds at all.

    Example:
        Difference(mean=0.031, low=0.004, high=0.058, p=0.029, df=7.4, se=0.012, method="welch")
    """

    mean: float
    low: float
    high: float
    p: float
    df: float
    se: float
    method: Literal["welch", "paired"]


def welch(a: ArrayLike, b: ArrayLike, confidence: float = 0.95) -> Difference:
    """Welch's t test and interval of mean(a) - mean(b); unequal variances (Welch 1947).

    The robust default across seeds: at 3 to 10 seeds it keeps its level where bootstrap and rank
    tests do not (Colas et al. 2019, arXiv:1904.06979).
    """
    x, y = _clean(a), _clean(b)
    if not len(x) or not len(y):
        return _unknown(math.nan, "welch")
    mean = float(x.mean() - y.mean())
    if len(x) < 2 or len(y) < 2:
        return _unknown(mean, "welch")
    var_x, var_y = _variance(x) / len(x), _variance(y) / len(y)
    se2 = var_x + var_y
    if se2 == 0:
        return _unknown(mean, "welch")
    df = se2**2 / (var_x**2 / (len(x) - 1) + var_y**2 / (len(y) - 1))
    return _t_difference(mean, math.sqrt(se2), df, confidence, "welch")


def paired_t(a: ArrayLike, b: ArrayLike, confidence: float = 0.95) -> Difference:
    """Paired t test and interval of mean(a - b); entry i of both comes from the same seed.

    A pair with a NaN is left out. Only for arms that share initialisation and data order.

    Raises:
        ValueError: different numbers of entries.
    """
    x, y = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    if x.shape != y.shape:
        raise ValueError(f"{len(x)} and {len(y)} values cannot be paired")
    d = _clean(x - y)
    if not len(d):
        return _unknown(math.nan, "paired")
    mean = float(d.mean())
    variance = _variance(d)
    if len(d) < 2 or variance == 0:
        return _unknown(mean, "paired")
    return _t_difference(mean, math.sqrt(variance / len(d)), len(d) - 1, confidence, "paired")


def permutation_p(a: ArrayLike, b: ArrayLike, rng: np.random.Generator | None = None) -> float:
    """Two-sided p of the difference of means when arm labels are exchangeable.

    Exact when there are at most `MAX_PERMUTATIONS` relabellings; with more, `rng` draws that many
    and the observed one counts too (Phipson and Smyth 2010), so p is never 0. Three against three
    seeds cannot go below 0.1.

    Raises:
        ValueError: too many relabellings and no `rng`.
    """
    x, y = _clean(a), _clean(b)
    if not len(x) or not len(y):
        return math.nan
    both = np.concatenate([x, y])
    observed = abs(x.mean() - y.mean())
    if math.comb(len(both), len(x)) <= MAX_PERMUTATIONS:
        chosen = np.array(list(combinations(range(len(both)), len(x))), dtype=np.intp)
        sums = both[chosen].sum(axis=1)
        extra = 0
    elif rng is None:
        raise ValueError(f"{len(x)} against {len(y)} seeds are too many for an exact test")
    else:
        order = rng.permuted(np.tile(np.arange(len(both)), (MAX_PERMUTATIONS // 10, 1)), axis=1)
        sums = both[order[:, : len(x)]].sum(axis=1)
        extra = 1
    differences = np.abs(sums / len(x) - (both.sum() - sums) / len(y))
    return _share_at_least(differences, observed, extra)


def sign_flip_p(a: ArrayLike, b: ArrayLike, rng: np.random.Generator | None = None) -> float:
    """Two-sided p of mean(a - b) when each pair's difference may have either sign.

    Exact up to 18 pairs, above that drawn with `rng`. Five pairs cannot go below 0.0625.

    Raises:
        ValueError: different numbers of entries, or too many pairs and no `rng`.
    """
    x, y = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    if x.shape != y.shape:
        raise ValueError(f"{len(x)} and {len(y)} values cannot be paired")
    d = _clean(x - y)
    n = len(d)
    if n == 0:
        return math.nan
    if 2**n <= MAX_PERMUTATIONS:
        signs = 1.0 - 2.0 * ((np.arange(2**n)[:, None] >> np.arange(n)) & 1)
        extra = 0
    elif rng is None:
        raise ValueError(f"{n} pairs are too many for an exact test")
    else:
        signs = rng.choice(np.array([-1.0, 1.0]), (MAX_PERMUTATIONS // 10, n))
        extra = 1
    return _share_at_least(np.abs(signs @ d) / n, abs(d.mean()), extra)


def smallest_p(num_a: int, num_b: int | None = None) -> float:
    """The smallest two-sided p of a permutation test: of two arms, or of `num_a` pairs.

    Example:
        smallest_p(3, 3) == 0.1; smallest_p(5) == 0.0625
    """
    if num_b is None:
        return min(1.0, 2.0 / float(2**num_a))
    # With different numbers the mirrored relabelling is not the observed difference.
    count: int = math.comb(num_a + num_b, num_a)
    return (2.0 if num_a == num_b else 1.0) / count


def holm(p_M: Sequence[float]) -> list[float]:
    """Holm's adjusted p values (Holm 1979), in the order given; family-wise error at most alpha.

    A NaN is a comparison that could not be tested: it stays NaN and does not count.

    Example:
        holm([0.01, 0.04, 0.03]) == [0.03, 0.06, 0.06]
    """
    tested = sorted((i for i, p in enumerate(p_M) if not math.isnan(p)), key=lambda i: p_M[i])
    adjusted = [math.nan] * len(p_M)
    worst = 0.0
    for rank, i in enumerate(tested):
        worst = max(worst, min(1.0, (len(tested) - rank) * p_M[i]))
        adjusted[i] = worst
    return adjusted


def prob_above(a: ArrayLike, b: ArrayLike, confidence: float = 0.95) -> Interval:
    """P(A > B) for one seed of each arm, ties counting half, with Newcombe's interval.

    The share over all pairs of seeds (Mann and Whitney); interval by method 5 of Newcombe 2006
    (doi:10.1002/sim.2324), which stays sensible when every seed of one arm is above the other's.
    """
    x, y = _clean(a), _clean(b)
    if not len(x) or not len(y):
        return Interval(math.nan, math.nan, math.nan, 0)
    share = float(((x[:, None] > y) + 0.5 * (x[:, None] == y)).mean())
    return _newcombe(share, len(x), len(y), confidence)


def prob_above_paired(a: ArrayLike, b: ArrayLike, confidence: float = 0.95) -> Interval:
    """Share of the seeds on which A is above B, ties counting half, with its Wilson interval."""
    d = _clean(np.asarray(a, dtype=np.float64) - np.asarray(b, dtype=np.float64))
    wins = float((d > 0).sum() + 0.5 * (d == 0).sum())
    return wilson(wins, len(d), confidence)


def _newcombe(share: float, num_a: int, num_b: int, confidence: float) -> Interval:
    from scipy.special import ndtri

    z = float(ndtri((1 + confidence) / 2))
    extra = (num_a + num_b) / 2 - 1

    def outside(theta: float) -> bool:
        spread = 1 + extra * ((1 - theta) / (2 - theta) + theta / (1 + theta))
        return (share - theta) ** 2 > z**2 * theta * (1 - theta) / (num_a * num_b) * spread

    def bound(far: float) -> float:
        """The theta between `share` and `far` where the two sides are equal."""
        near = share
        if near == far:
            return far
        for _ in range(60):
            middle = (near + far) / 2
            near, far = (near, middle) if outside(middle) else (middle, far)
        return near

    return Interval(share, bound(0.0), bound(1.0), num_a + num_b)


def _t_difference(
    mean: float, se: float, df: float, confidence: float, method: Literal["welch", "paired"]
) -> Difference:
    from scipy.special import stdtr, stdtrit

    half = float(stdtrit(df, (1 + confidence) / 2)) * se
    p = 2 * float(stdtr(df, -abs(mean) / se))
    return Difference(mean, mean - half, mean + half, p, df, se, method)


def _unknown(mean: float, method: Literal["welch", "paired"]) -> Difference:
    nan = math.nan
    return Difference(mean, nan, nan, nan, nan, nan, method)


def _clean(values: ArrayLike) -> NDArray[np.float64]:
    x = np.asarray(values, dtype=np.float64)
    kept: NDArray[np.float64] = x[~np.isnan(x)]
    return kept


def _variance(x: NDArray[np.float64]) -> float:
    """Sample variance; exactly 0 for what is equal but for the rounding of a mean."""
    scale = float(np.abs(x).max())
    if float(np.ptp(x)) <= 1e-12 * scale:
        return 0.0
    return float(x.var(ddof=1))


def _share_at_least(values: NDArray[np.float64], observed: float, extra: int) -> float:
    # Sums of the same numbers in another order differ in their last bits.
    count = int((values >= observed * (1 - 1e-12) - 1e-300).sum()) + extra
    return count / (len(values) + extra)
