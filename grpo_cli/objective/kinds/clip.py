"""Clipped surrogate with separate bounds: PPO, GRPO, DAPO; optionally dual or two-sided clip.

Dims: T completion tokens, N sequences.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field, model_validator

from grpo_cli.objective.base import Objective, clip_metrics
from grpo_cli.types import TokenLoss, Tokens


class Clip(Objective):
    """ell = -min(r A, clip(r, 1 - low, 1 + high) A), with r = exp(logp - old_logp).

    The clip is one-sided: it acts for A > 0 above 1 + high and for A < 0 below 1 - low, and stops
    the gradient there.
    """

    kind: Literal["clip"] = "clip"
    source: ClassVar[str] = (
        "PPO arXiv:1707.06347 Eq. 7; GRPO arXiv:2402.03300 Eq. 3; separate bounds DAPO "
        "arXiv:2503.14476 Eq. 10"
    )
    low: float = Field(0.2, ge=0, le=1)
    """How far below 1 the ratio may fall before a token with A < 0 stops pushing it down."""
    high: float = Field(0.2, ge=0)
    """How far above 1 the ratio may rise before a token with A > 0 stops pushing it up."""
    dual_clip: float | None = Field(None, gt=1)
    """Largest ratio that a token with A < 0 may act on: its loss is at most -dual_clip A
    (arXiv:1912.09729; verl `clip_ratio_c`, there 3 by default). Above it the gradient is 0."""
    delta: float | None = Field(None, gt=1)
    """Two-sided clip: the unclipped ratio is capped at delta (INTELLECT-2, arXiv:2505.07291; TRL
    `delta`). It acts on A < 0 only; must exceed 1 + high."""

    @model_validator(mode="after")
    def _delta_above_high(self) -> Clip:
        if self.delta is not None and self.delta <= 1 + self.high:
            raise ValueError(
                f"delta {self.delta:g} is not above 1 + high = {1 + self.high:g}: it would cut "
                "what `high` allows"
            )
        return self

    def __call__(self, x: Tokens) -> TokenLoss:
        """Per-token loss, shape (T,)."""
        import torch

        adv_T = x.adv_T
        ratio_T = (x.logp_T - x.old_logp_T).exp()
        free_T = ratio_T if self.delta is None else ratio_T.clamp(max=self.delta)
        ell_T = -torch.minimum(free_T * adv_T, ratio_T.clamp(1 - self.low, 1 + self.high) * adv_T)
        is_high_T = (ratio_T > 1 + self.high) & (adv_T > 0)
        is_low_T = (ratio_T < 1 - self.low) & (adv_T < 0)
        for cap in (self.delta, self.dual_clip):
            if cap is not None:
                is_high_T = is_high_T | ((ratio_T > cap) & (adv_T < 0))
        if self.dual_clip is not None:
            ell_T = torch.where(adv_T < 0, ell_T.minimum(-self.dual_clip * adv_T), ell_T)
        return TokenLoss(ell_T, clip_metrics(is_low_T, is_high_T, x))

    def formula(self) -> str:
        """The per-token loss with its numbers."""
        free = "r A" if self.delta is None else f"min(r, {self.delta:g}) A"
        text = f"-min({free}, clip(r, {1 - self.low:g}, {1 + self.high:g}) A)"
        if self.dual_clip is not None:
            text += f", at most {self.dual_clip:g} |A| where A < 0"
        return text
