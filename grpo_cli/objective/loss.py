"""The one sum. Dims: T completion tokens, N sequences of a micro-batch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from grpo_cli.objective.base import Objective
from grpo_cli.objective.correction import AnyCorrection, NoCorrection, correct
from grpo_cli.objective.entropy import AnyEntropy, EntropyBonus, NoEntropy
from grpo_cli.objective.kl import Kl, kl_estimate
from grpo_cli.types import Metric, TokenLoss, Tokens

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class Parts:
    """The settings that make up a loss."""

    objective: Objective
    kl: Kl = Kl()
    correction: AnyCorrection = NoCorrection()
    entropy: AnyEntropy = NoEntropy()


def weighted_loss(
    parts: Parts,
    x: Tokens,
    *,
    weight_N: Tensor,
    ref_logp_T: Tensor | None = None,
    sampler_logp_T: Tensor | None = None,
    entropy_T: Tensor | None = None,
    keep_T: Tensor | None = None,
    entropy_weight: float = 0.0,
    nll_weight_N: Tensor | None = None,
) -> tuple[Tensor, TokenLoss]:
    """The micro-batch's share of the optimizer step's loss, and the unweighted per-token terms.

        loss = sum_t w[n_t] (corr_t keep_t ell_t + beta k_t) - coef entropy_weight sum_t H_t
               - sum_t v[n_t] logp_t

    Summing the shares of all micro-batches gives the loss of the step, because `weight_N` comes
    from the lengths of the whole step.

    Args:
        x: with `correction.bypass` the caller passes the sampler's log-probabilities as the old.
        weight_N: weight of each sequence's tokens; 0 takes a sequence out.
        keep_T: tokens that train (all, if None).
        entropy_weight: 1 / trainable tokens of the step, for the entropy bonus.
        nll_weight_N: v, the weight of each sequence's tokens in `positive_nll`.
    """
    weight_T = weight_N[x.seq_T]
    if not (weight_N > 0).all():
        # A sequence outside the loss must not reach it with an infinity: neither its value nor,
        # through 0 * inf in the backward pass, its gradient.
        x = replace(
            x,
            logp_T=x.logp_T.where(weight_T > 0, 0.0),
            old_logp_T=x.old_logp_T.where(weight_T > 0, 0.0),
        )
    token_loss = parts.objective(x)
    total_T = token_loss.ell_T
    metrics = dict(token_loss.metrics)
    if sampler_logp_T is not None:
        correction = correct(
            parts.correction,
            x.logp_T,
            x.old_logp_T,
            sampler_logp_T,
            x.adv_N,
            x.seq_T,
            len(x.length_N),
        )
        metrics |= correction.metrics
        if not isinstance(parts.correction, NoCorrection):
            # Selecting, not multiplying: a weight of 0 must stop an infinite term too.
            factor_T = correction.weight_T
            total_T = (factor_T * total_T).where(factor_T != 0, 0.0)
    else:
        assert isinstance(parts.correction, NoCorrection), "a correction needs the sampler's logp"
    if keep_T is not None:
        total_T = total_T.where(keep_T, 0.0)
    if parts.kl.in_loss:
        assert ref_logp_T is not None, "a KL term needs reference log-probabilities"
        kl_T = kl_estimate(parts.kl.kind, x.logp_T, ref_logp_T, x.old_logp_T)
        total_T = total_T + parts.kl.beta * kl_T
        metrics["policy/kl_loss"] = Metric(float(kl_T.detach().sum()), kl_T.numel())
    loss = (weight_T.to(total_T.dtype) * total_T.where(weight_T > 0, 0.0)).sum()
    if isinstance(parts.entropy, EntropyBonus):
        assert entropy_T is not None, "an entropy bonus needs entropies"
        loss = loss - parts.entropy.coef * entropy_weight * entropy_T.sum()
    if nll_weight_N is not None:
        nll_weight_T = nll_weight_N[x.seq_T].to(x.logp_T.dtype)
        loss = loss - (nll_weight_T * x.logp_T).sum()
        counted_T = nll_weight_T > 0
        nll = -float(x.logp_T.detach()[counted_T].sum())
        metrics["loss/positive_nll"] = Metric(nll, int(counted_T.sum()))
    return loss, TokenLoss(total_T, metrics)
