"""How well a probability tells right from wrong: AUC over pairs. Dims: N answers, B resamples."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from grpo_cli.stats.interval import Interval


def auc(p_N: Sequence[float], right_N: Sequence[bool], stratum_N: Sequence[str]) -> float:
    """The share of (right, wrong) pairs inside a stratum in which the right answer has the higher
    p, ties counting one half. NaN without a pair.

    With one stratum it is the area under the ROC curve. A harder stratum has fewer right answers,
    so whoever only knows how hard a question is gets more than 0.5 there, and 0.5 inside strata.

    Example:
        p 0.9 0.6 0.6 0.2, right yes yes no no, one stratum -> (1 + 1 + 0.5 + 1) / 4 = 0.875
    """
    p, right = np.asarray(p_N, dtype=np.float64), np.asarray(right_N, dtype=bool)
    strata, stratum = np.unique(np.asarray(stratum_N), return_inverse=True)
    won, pairs = _pairs(p, right, stratum, len(strata))
    return won / pairs if pairs else math.nan


def auc_interval(
    p_N: Sequence[float],
    right_N: Sequence[bool],
    stratum_N: Sequence[str],
    cluster_N: Sequence[str],
    rng: np.random.Generator,
    *,
    num_resamples: int = 1000,
    confidence: float = 0.95,
) -> Interval:
    """`auc` with a percentile bootstrap over whole clusters (questions); `n` counts clusters.

    A question that is drawn twice is there twice, as two questions of its stratum.
    """
    p, right = np.asarray(p_N, dtype=np.float64), np.asarray(right_N, dtype=bool)
    strata, stratum = np.unique(np.asarray(stratum_N), return_inverse=True)
    clusters, cluster = np.unique(np.asarray(cluster_N), return_inverse=True)
    mean = auc(p_N, right_N, stratum_N)
    if len(clusters) < 2:
        return Interval(mean, math.nan, math.nan, len(clusters))
    rows_C = [np.flatnonzero(cluster == c) for c in range(len(clusters))]
    found = []
    for _ in range(num_resamples):
        drawn = np.concatenate([rows_C[c] for c in rng.integers(len(clusters), size=len(clusters))])
        won, pairs = _pairs(p[drawn], right[drawn], stratum[drawn], len(strata))
        if pairs:
            found.append(won / pairs)
    if not found:
        return Interval(mean, math.nan, math.nan, len(clusters))
    tail = (1 - confidence) / 2
    low, high = np.quantile(found, [tail, 1 - tail])
    return Interval(mean, float(low), float(high), len(clusters))


def _pairs(
    p: NDArray[np.float64], right: NDArray[np.bool_], stratum: NDArray[np.intp], num_strata: int
) -> tuple[float, int]:
    """Pairs that the right answer wins, and all pairs of a right and a wrong answer."""
    won, pairs = 0.0, 0
    for s in range(num_strata):
        here = stratum == s
        high, low = p[here & right], np.sort(p[here & ~right])
        below = np.searchsorted(low, high, side="left")
        not_above = np.searchsorted(low, high, side="right")
        won += float((below + not_above).sum()) / 2
        pairs += len(high) * len(low)
    return won, pairs
