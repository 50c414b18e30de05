"""DRO: REINFORCE with a square pull to the old policy. Dims: T, N."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from grpo_cli.objective.base import Objective, clip_metrics
from grpo_cli.types import TokenLoss, Tokens


class Dro(Objective):
    """ell = -(A logp - beta / 2 (logp - old_logp)^2)."""

    kind: Literal["dro"] = "dro"
    source: ClassVar[str] = "Kimi k1.5 arXiv:2501.12599, per token"
    acts_without_advantage: ClassVar[bool] = True
    beta: float = Field(0.1, gt=0)
    """Strength of the pull."""

    def __call__(self, x: Tokens) -> TokenLoss:
        """Per-token loss, shape (T,)."""
        import torch

        pull_T = self.beta / 2 * (x.logp_T - x.old_logp_T) ** 2
        never_T = torch.zeros_like(x.seq_T, dtype=torch.bool)
        return TokenLoss(pull_T - x.adv_T * x.logp_T, clip_metrics(never_T, never_T, x))

    def formula(self) -> str:
        """The per-token loss with its numbers."""
        return f"-(A log pi - {self.beta / 2:g} (log r)^2)"
