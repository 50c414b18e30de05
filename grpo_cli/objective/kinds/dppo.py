"""DPPO: a trust region on the probability's change instead of its ratio. Dims: T, N."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from grpo_cli.objective.base import Objective, clip_metrics
from grpo_cli.types import TokenLoss, Tokens


class Dppo(Objective):
    """ell = -keep sg[min(r, ratio_max)] A logp, with keep by the binary divergence of the token.

    tv: a token is dropped when its probability moved by more than delta the way A pushes it.
    kl: when KL(old, new) of the two-outcome distribution exceeds delta and it moved that way.
    Low-probability tokens, which a ratio clip stops early, stay in.
    """

    kind: Literal["dppo"] = "dppo"
    source: ClassVar[str] = "arXiv:2602.04879"
    divergence: Literal["tv", "kl"] = "tv"
    """Total variation or KL, of the two outcomes "this token" and "another one"."""
    delta: float = Field(0.15, gt=0)
    """Largest divergence (the paper: 0.15 for tv, 0.05 for kl)."""
    ratio_max: float = Field(20.0, gt=1)
    """Cap on the detached ratio."""

    def __call__(self, x: Tokens) -> TokenLoss:
        """Per-token loss, shape (T,)."""
        logp_T, adv_T = x.logp_T.detach(), x.adv_T
        ratio_T = (logp_T - x.old_logp_T).exp()
        prob_T, old_T = logp_T.exp(), x.old_logp_T.exp()
        if self.divergence == "tv":
            far_T = (prob_T - old_T).abs() > self.delta
        else:
            # log(1 - p) by expm1, and a floor for p = 1, keep certain tokens finite.
            rest_T = (-logp_T.expm1()).clamp(min=1e-30)
            old_rest_T = (-x.old_logp_T.expm1()).clamp(min=1e-30)
            kl_T = old_T * (x.old_logp_T - logp_T) + old_rest_T * (old_rest_T / rest_T).log()
            far_T = kl_T > self.delta
        is_high_T = far_T & (prob_T > old_T) & (adv_T > 0)
        is_low_T = far_T & (prob_T < old_T) & (adv_T < 0)
        keep_T = ~(is_high_T | is_low_T)
        weight_T = keep_T * ratio_T.clamp(max=self.ratio_max)
        ell_T = -weight_T * adv_T * x.logp_T
        return TokenLoss(
            ell_T, clip_metrics(is_low_T, is_high_T | (keep_T & (ratio_T > self.ratio_max)), x)
        )

    def formula(self) -> str:
        """The per-token loss with its numbers."""
        what = "|pi - pi_old|" if self.divergence == "tv" else "KL of (pi_old, 1 - pi_old)"
        return (
            f"-sg[min(r, {self.ratio_max:g})] A log pi, dropped where {what} > {self.delta:g} and "
            "the move is the way A pushes"
        )
