"""What a design can see: power of a t test and the minimum detectable effect. Dims: S seeds.

Own integrals: planning needs nothing else of scipy, whose special functions take longer to import
than the rest of a plan takes to make.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

_NODES = 300
_SMALLEST = 37.0
"""Nodes whose weight is below exp(-37) of the largest are left out."""


def t_power(effect: float, se: float, df: float, alpha: float = 0.05) -> float:
    """Chance that a two-sided t test at level `alpha` finds a true difference of `effect`.

    `se` is the standard error of the difference. Noncentral t, exact for normal seed scores.
    """
    return _outside(abs(effect) / se, _critical(df, alpha), df)


def detectable(se: float, df: float, alpha: float = 0.05, power: float = 0.8) -> float:
    """The smallest true difference that a t test at level `alpha` finds with chance `power`.

    For a comparison that was made: `se` and `df` of its difference. NaN when they are not known.
    """
    if not se > 0 or not df > 0:
        return math.nan
    critical = _critical(df, alpha)
    return se * _root(lambda shift: _outside(shift, critical, df) - power)


def mde(
    sd: float,
    num_seeds: int,
    *,
    paired: bool = False,
    alpha: float = 0.05,
    power: float = 0.8,
    family: int = 1,
) -> float:
    """Minimum detectable effect of a design with `num_seeds` per arm, in the unit of `sd`.

    `sd` is the seed SD of one arm, or with `paired` the SD of the differences within a seed.
    `family` comparisons under Holm: the worst case, in which each needs alpha / family. NaN below
    two seeds, where nothing can be detected.

    Example:
        mde(1.0, 5) == 2.02; mde(1.0, 5, paired=True) == 1.68; mde(1.0, 5, family=5) == 2.74
    """
    if num_seeds < 2:
        return math.nan
    se = sd / math.sqrt(num_seeds) if paired else sd * math.sqrt(2 / num_seeds)
    df = num_seeds - 1 if paired else 2 * num_seeds - 2
    return detectable(se, df, alpha / max(family, 1), power)


def _critical(df: float, alpha: float) -> float:
    """The value that |t| exceeds with chance `alpha` when nothing differs."""
    return _root(lambda bound: alpha - _outside(0.0, bound, df))


def _outside(shift: float, bound: float, df: float) -> float:
    """Chance that |t| is above `bound`, for t noncentral by `shift`.

    t = (z + shift) / s with z normal and s^2 the mean of `df` squared normals: the chance for a
    given s, weighted by the density of log s.
    """
    root = math.sqrt(0.5)
    return sum(
        weight
        * 0.5
        * (math.erfc((bound * s - shift) * root) + math.erfc((bound * s + shift) * root))
        for s, weight in _spread(df)
    )


@lru_cache(maxsize=64)
def _spread(df: float) -> tuple[tuple[float, float], ...]:
    """Values of s and their weights, equally spaced in log s; the weights sum to 1."""
    wide = math.sqrt(_SMALLEST / df)
    low, high = -(_SMALLEST / df + wide), wide
    step = (high - low) / (_NODES - 1)
    x = [low + i * step for i in range(_NODES)]
    weights = [math.exp(df * (v - math.expm1(2 * v) / 2)) for v in x]
    total = sum(weights)
    return tuple((math.exp(v), w / total) for v, w in zip(x, weights, strict=True))


def _root(rising: Callable[[float], float]) -> float:
    """Where a rising function of a positive number is 0."""
    low, high = 0.0, 1.0
    while rising(high) < 0:
        low, high = high, 2 * high
    while high - low > 1e-12 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if rising(middle) < 0 else (low, middle)
    return high
