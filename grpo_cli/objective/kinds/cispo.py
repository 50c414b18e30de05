"""CISPO: cap and detach the ratio, keep every token's gradient. Dims: T, N."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from grpo_cli.objective.base import Objective, clip_metrics
from grpo_cli.types import TokenLoss, Tokens


class Cispo(Objective):
    """ell = -sg[clamp(r, ratio_min, ratio_max)] A logp, with r = policy / old (not the reverse)."""

    kind: Literal["cispo"] = "cispo"
    source: ClassVar[str] = "MiniMax-M1 arXiv:2506.13585 Eq. 4 and 5"
    ratio_max: float = Field(5.0, gt=1)
    """Cap on the ratio itself (TRL `epsilon_high`; verl writes the same cap as
    `1 + clip_ratio_high`). MiniMax did not publish theirs; ScaleRL finds 4 to 8 alike."""
    ratio_min: float | None = Field(None, ge=0, lt=1)
    """Floor of the ratio; the paper uses none."""

    def __call__(self, x: Tokens) -> TokenLoss:
        """Per-token loss, shape (T,)."""
        ratio_T = (x.logp_T - x.old_logp_T).detach().exp()
        ell_T = -ratio_T.clamp(self.ratio_min, self.ratio_max) * x.adv_T * x.logp_T
        is_low_T = ratio_T < (self.ratio_min or 0.0)
        return TokenLoss(ell_T, clip_metrics(is_low_T, ratio_T > self.ratio_max, x))

    def formula(self) -> str:
        """The per-token loss with its numbers."""
        kept = f"min(r, {self.ratio_max:g})"
        if self.ratio_min is not None:
            kept = f"clip(r, {self.ratio_min:g}, {self.ratio_max:g})"
        return f"-sg[{kept}] A log pi"
