"""Clipped surrogate with separate bounds: PPO, GRPO, DAPO.

Dims: T completion tokens, N sequences.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from grpo_cli.objective.base import Objective
from grpo_cli.types import Metric, TokenLoss, Tokens


class Clip(Objective):
    """ell = -min(r A, clip(r, 1 - low, 1 + high) A), with r = exp(logp - old_logp).

    PPO arXiv:1707.06347 Eq. 7; GRPO arXiv:2402.03300 Eq. 3; separate bounds ("clip-higher") DAPO
    arXiv:2503.14476 Eq. 10. The clip is one-sided: it acts for A > 0 above 1 + high and for A < 0
    below 1 - low, and stops the gradient there.
    """

    kind: Literal["clip"] = "clip"
    low: float = Field(0.2, ge=0, le=1)
    """How far below 1 the ratio may fall before a token with A < 0 stops pushing it down."""
    high: float = Field(0.2, ge=0)
    """How far above 1 the ratio may rise before a token with A > 0 stops pushing it up."""

    def __call__(self, x: Tokens) -> TokenLoss:
        """Per-token loss, shape (T,)."""
        import torch

        adv_T = x.adv_T
        ratio_T = (x.logp_T - x.old_logp_T).exp()
        clipped_T = ratio_T.clamp(1 - self.low, 1 + self.high)
        ell_T = -torch.minimum(ratio_T * adv_T, clipped_T * adv_T)
        num_tokens = ratio_T.numel()
        is_high_T = (ratio_T > 1 + self.high) & (adv_T > 0)
        is_low_T = (ratio_T < 1 - self.low) & (adv_T < 0)
        return TokenLoss(
            ell_T,
            {
                "ratio/clipped_high_frac": Metric(int(is_high_T.sum()), num_tokens),
                "ratio/clipped_low_frac": Metric(int(is_low_T.sum()), num_tokens),
            },
        )
