"""Scores of several samples of one question: pass@k, avg@k, maj@k. Dims: K samples."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations

import numpy as np

MAX_SUBSETS = 20_000
"""Most subsets that `maj_at_k` goes through; above it draws this many."""


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


def all_at_k(num_samples: int, num_correct: int, k: int) -> float:
    """Unbiased share of k-subsets that are all right, C(c, k) / C(n, k); NaN when n < k.

    Example:
        all_at_k(4, 3, 2) == 0.5
    """
    if num_samples < k:
        return math.nan
    return math.comb(num_correct, k) / math.comb(num_samples, k)


def avg_at_k(scores: Sequence[float], k: int) -> float:
    """Mean score over all k-subsets, which is the mean of all samples; NaN when n < k.

    It estimates pass@1, with less noise the more samples there are.
    """
    return sum(scores) / len(scores) if len(scores) >= max(k, 1) else math.nan


def maj_at_k(
    answers: Sequence[str | None],
    scores: Sequence[float],
    k: int,
    rng: np.random.Generator | None = None,
) -> float:
    """Expected score of the majority answer of k of the samples; NaN when n < k.

    None is an answer that could not be read: it has no vote. A tie is broken at random, so it gives
    the mean over the tied answers; without any vote the score is 0. All subsets are gone through
    when there are at most `MAX_SUBSETS`.

    Raises:
        ValueError: more subsets than that and no `rng` to draw some.
    """
    n = len(answers)
    if n < k or k < 1:
        return math.nan
    if math.comb(n, k) <= MAX_SUBSETS:
        subsets = [list(chosen) for chosen in combinations(range(n), k)]
    elif rng is None:
        raise ValueError(f"{n} samples have too many subsets of {k}: pass a Generator")
    else:
        subsets = [rng.choice(n, k, replace=False).tolist() for _ in range(MAX_SUBSETS)]
    return sum(_vote(answers, scores, chosen) for chosen in subsets) / len(subsets)


def _vote(answers: Sequence[str | None], scores: Sequence[float], chosen: Sequence[int]) -> float:
    votes: dict[str, list[float]] = {}
    for index in chosen:
        answer = answers[index]
        if answer is not None:
            votes.setdefault(answer, []).append(scores[index])
    most = max((len(given) for given in votes.values()), default=0)
    tied = [sum(given) / len(given) for given in votes.values() if len(given) == most]
    return sum(tied) / len(tied) if tied else 0.0
