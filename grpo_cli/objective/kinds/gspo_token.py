"""GSPO-token: GSPO's ratio, with the gradient of each token kept apart. Dims: T, N."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from grpo_cli.objective.base import Objective, clip_metrics, sequence_mean
from grpo_cli.types import TokenLoss, Tokens


class GspoToken(Objective):
    """ell_t = -min(s_t A, clip(s_t, 1 - low, 1 + high) A), s_t = sg[s] pi_t / sg[pi_t].

    In value s_t is the sequence ratio of `gspo`; value and gradient equal GSPO's whenever the
    advantage is the same for all tokens of a sequence.
    """

    kind: Literal["gspo_token"] = "gspo_token"
    source: ClassVar[str] = "arXiv:2507.18071 Eq. 13 and 14"
    low: float = Field(3e-4, ge=0, le=1)
    """Lower bound 1 - low of the sequence ratio; acts where A < 0."""
    high: float = Field(4e-4, ge=0)
    """Upper bound 1 + high of the sequence ratio; acts where A > 0."""

    def __call__(self, x: Tokens) -> TokenLoss:
        """Per-token loss, shape (T,)."""
        import torch

        adv_T = x.adv_T
        ratio_N = sequence_mean((x.logp_T - x.old_logp_T).detach(), x).exp()
        ratio_T = ratio_N[x.seq_T] * (x.logp_T - x.logp_T.detach()).exp()
        ell_T = -torch.minimum(ratio_T * adv_T, ratio_T.clamp(1 - self.low, 1 + self.high) * adv_T)
        is_high_T = (ratio_T > 1 + self.high) & (adv_T > 0)
        is_low_T = (ratio_T < 1 - self.low) & (adv_T < 0)
        return TokenLoss(ell_T, clip_metrics(is_low_T, is_high_T, x))

    def formula(self) -> str:
        """The per-token loss with its numbers."""
        bounds = f"clip(s_t, {1 - self.low:g}, {1 + self.high:g}) A"
        return f"-min(s_t A, {bounds}), s_t = sg[exp(mean log r)] pi_t / sg[pi_t]"
