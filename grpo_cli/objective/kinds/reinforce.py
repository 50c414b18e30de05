"""REINFORCE: no ratio at all. Dims: T, N."""

from __future__ import annotations

from typing import ClassVar, Literal

from grpo_cli.objective.base import Objective, clip_metrics
from grpo_cli.types import TokenLoss, Tokens


class Reinforce(Objective):
    """ell = -A logp."""

    kind: Literal["reinforce"] = "reinforce"
    source: ClassVar[str] = "Williams 1992"

    def __call__(self, x: Tokens) -> TokenLoss:
        """Per-token loss, shape (T,)."""
        import torch

        never_T = torch.zeros_like(x.seq_T, dtype=torch.bool)
        return TokenLoss(-x.adv_T * x.logp_T, clip_metrics(never_T, never_T, x))

    def formula(self) -> str:
        """The per-token loss."""
        return "-A log pi"
