"""What a design can see: power of a t test and the minimum detectable effect. Dims: S seeds."""

from __future__ import annotations

import math


def t_power(effect: float, se: float, df: float, alpha: float = 0.05) -> float:
    """Chance that a two-sided t test at level `alpha` finds a true difference of `effect`.

    `se` is the standard error of the difference. Noncentral t, exact for normal seed scores.
    """
    from scipy.special import nctdtr, stdtrit

    critical = float(stdtrit(df, 1 - alpha / 2))
    shift = abs(effect) / se
    # The lower tail is below 1e-4 for any shift that matters, and there `nctdtr` may give NaN.
    below = float(nctdtr(df, shift, -critical))
    return 1 - float(nctdtr(df, shift, critical)) + (0.0 if math.isnan(below) else below)


def detectable(se: float, df: float, alpha: float = 0.05, power: float = 0.8) -> float:
    """The smallest true difference that a two-sided t test finds with chance `power`.

    For a comparison that was made: `se` and `df` of its difference. NaN when they are not known.
    """
    if not se > 0 or not df > 0:
        return math.nan
    low, high = 0.0, 1.0
    while t_power(high, 1.0, df, alpha) < power:
        low, high = high, 2 * high
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if t_power(middle, 1.0, df, alpha) < power else (low, middle)
    return high * se


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
