"""How far the sampler's log-probabilities are from the learner's for the same tokens and weights.

In exact arithmetic there is no difference. What there is comes from other kernels, precision,
quantisation or staleness, and it makes "on-policy" data off-policy.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from grpo_cli.types import Batch


def mismatch_scalars(learner_logp: Mapping[int, Tensor], batch: Batch) -> dict[str, float]:
    """The `mismatch/*` metrics over the trained tokens of a batch; empty when nothing trained.

    rho = learner / sampler probability of a token, with the weights before the first update.

    Args:
        learner_logp: sequence index -> the learner's log-probabilities (nats), shape (T_n,).
        batch: holds the sampler's.

    Returns:
        mean, 99th percentile and maximum of |log rho|; `k1` and `k3`, two estimators of
        KL(sampler, learner) in nats per token; the share of tokens with rho outside [1/2, 2]; and
        log rho summed over the sequence where its absolute value is largest, with its length.
    """
    if not learner_logp:
        return {}
    log_rho_N = [
        logp.detach().double().cpu() - torch.tensor(batch.sampler_logp_N[n], dtype=torch.float64)
        for n, logp in sorted(learner_logp.items())
    ]
    log_rho_T = torch.cat(log_rho_N)
    if not len(log_rho_T):
        return {}
    # Sorting, because torch.quantile refuses more than 2**24 values.
    gap_T = log_rho_T.abs().sort().values
    sums = torch.stack([log_rho.sum() for log_rho in log_rho_N])
    worst = int(sums.abs().argmax())
    return {
        "mismatch/logp_abs_mean": float(gap_T.mean()),
        "mismatch/logp_abs_p99": float(gap_T[round(0.99 * (len(gap_T) - 1))]),
        "mismatch/logp_abs_max": float(gap_T[-1]),
        "mismatch/k1": float(-log_rho_T.mean()),
        "mismatch/k3": float((log_rho_T.exp() - 1 - log_rho_T).mean()),
        "mismatch/rho_beyond_2_frac": float((gap_T > math.log(2)).double().mean()),
        "mismatch/worst_seq_log_rho": float(sums[worst]),
        "mismatch/worst_seq_length": len(log_rho_N[worst]),
    }
