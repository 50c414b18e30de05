"""The one sum. Dims: T completion tokens, N sequences of a micro-batch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from grpo_cli.objective.base import Objective
from grpo_cli.objective.kl import Kl, kl_estimate
from grpo_cli.types import Metric, TokenLoss, Tokens

if TYPE_CHECKING:
    from torch import Tensor


def weighted_loss(
    objective: Objective, kl: Kl, x: Tokens, ref_logp_T: Tensor | None, weight_N: Tensor
) -> tuple[Tensor, TokenLoss]:
    """The micro-batch's share of the optimizer step's loss, and the unweighted per-token terms.

    `loss = sum_t w[n_t] * (ell_t + beta * k_t)`. Summing the shares of all micro-batches gives the
    loss of the step, because `weight_N` comes from the lengths of the whole step.
    """
    token_loss = objective(x)
    total_T = token_loss.ell_T
    metrics = dict(token_loss.metrics)
    if kl.beta:
        assert ref_logp_T is not None, "kl.beta > 0 needs reference log-probabilities"
        kl_T = kl_estimate(x.logp_T, ref_logp_T)
        total_T = total_T + kl.beta * kl_T
        metrics["policy/kl_ref"] = Metric(float(kl_T.detach().sum()), kl_T.numel())
    weight_T = weight_N[x.seq_T].to(total_T.dtype)
    # A sequence outside the loss has weight 0; selecting instead of multiplying keeps its
    # infinities out (0 * inf is NaN).
    loss = (weight_T * total_T.where(weight_T > 0, 0.0)).sum()
    return loss, TokenLoss(total_T, metrics)
