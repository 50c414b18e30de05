"""Intervals, tests and estimators. Pure numpy and scipy; scipy is imported inside functions.

Dims: S seeds, Q questions, K samples per question, B bootstrap resamples, M hypotheses.
"""

from grpo_cli.stats.auc import auc, auc_interval
from grpo_cli.stats.crossed import crossed_bootstrap
from grpo_cli.stats.design import detectable, mde, t_power
from grpo_cli.stats.difference import (
    Difference,
    holm,
    paired_t,
    permutation_p,
    prob_above,
    prob_above_paired,
    sign_flip_p,
    smallest_p,
    welch,
)
from grpo_cli.stats.interval import (
    Interval,
    clopper_pearson,
    interquartile_mean,
    mean_interval,
    wilson,
)
from grpo_cli.stats.sampled import all_at_k, avg_at_k, maj_at_k, pass_at_k

__all__ = [
    "Difference",
    "Interval",
    "all_at_k",
    "auc",
    "auc_interval",
    "avg_at_k",
    "clopper_pearson",
    "crossed_bootstrap",
    "detectable",
    "holm",
    "interquartile_mean",
    "maj_at_k",
    "mde",
    "mean_interval",
    "paired_t",
    "pass_at_k",
    "permutation_p",
    "prob_above",
    "prob_above_paired",
    "sign_flip_p",
    "smallest_p",
    "t_power",
    "welch",
    "wilson",
]
