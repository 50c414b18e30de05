"""GMPO: geometric mean of one-sidedly clipped token ratios. Dims: T, N."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from grpo_cli.objective.base import Objective, clip_metrics, sequence_mean
from grpo_cli.types import TokenLoss, Tokens


class Gmpo(Objective):
    """ell_t = -A exp(mean_t x_t), x_t = min(log r, clip) for A > 0 and max(log r, clip) for A < 0.

    The bounds are in log space: 0.4 allows ratios from e^-0.4 = 0.670 to e^0.4 = 1.492.
    """

    kind: Literal["gmpo"] = "gmpo"
    sequence_level: ClassVar[bool] = True
    source: ClassVar[str] = "arXiv:2507.20673"
    low: float = Field(0.4, ge=0)
    """Lowest log ratio of a token where A < 0."""
    high: float = Field(0.4, ge=0)
    """Highest log ratio of a token where A > 0."""

    def __call__(self, x: Tokens) -> TokenLoss:
        """Per-token loss, shape (T,), constant within a sequence."""
        import torch

        adv_T = x.adv_T
        log_ratio_T = x.logp_T - x.old_logp_T
        clipped_T = log_ratio_T.clamp(-self.low, self.high)
        kept_T = torch.where(
            adv_T > 0, log_ratio_T.minimum(clipped_T), log_ratio_T.maximum(clipped_T)
        )
        ell_N = -x.adv_N * sequence_mean(kept_T, x).exp()
        is_high_T = (log_ratio_T > self.high) & (adv_T > 0)
        is_low_T = (log_ratio_T < -self.low) & (adv_T < 0)
        return TokenLoss(ell_N[x.seq_T], clip_metrics(is_low_T, is_high_T, x))

    def formula(self) -> str:
        """The per-token loss with its numbers."""
        return (
            f"-A exp(mean of log r, each token's stopped above {self.high:g} where A > 0 and below "
            f"{-self.low:g} where A < 0)"
        )
