"""SAPO: a sigmoid gate in place of the clip. Dims: T, N."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from grpo_cli.objective.base import Objective, clip_metrics
from grpo_cli.types import TokenLoss, Tokens


class Sapo(Objective):
    """ell = -f(r) A, f(r) = (4 / tau) sigmoid(tau (r - 1)), tau by the sign of A.

    The gradient is A r sech^2(tau (r - 1) / 2): A at r = 1, fading on both sides. No token is ever
    cut, so the clip fractions are 0.
    """

    kind: Literal["sapo"] = "sapo"
    source: ClassVar[str] = "arXiv:2511.20347"
    tau_pos: float = Field(1.0, gt=0)
    """Steepness of the gate where A > 0."""
    tau_neg: float = Field(1.05, gt=0)
    """Steepness of the gate where A <= 0."""

    def __call__(self, x: Tokens) -> TokenLoss:
        """Per-token loss, shape (T,)."""
        import torch

        adv_T = x.adv_T
        ratio_T = (x.logp_T - x.old_logp_T).exp()
        tau_T = torch.full_like(ratio_T, self.tau_neg).masked_fill(adv_T > 0, self.tau_pos)
        gate_T = 4 / tau_T * torch.sigmoid(tau_T * (ratio_T - 1))
        never_T = torch.zeros_like(adv_T, dtype=torch.bool)
        return TokenLoss(-gate_T * adv_T, clip_metrics(never_T, never_T, x))

    def formula(self) -> str:
        """The per-token loss with its numbers."""
        return (
            "-(4 / tau) sigmoid(tau (r - 1)) A, "
            f"tau = {self.tau_pos:g} where A > 0, else {self.tau_neg:g}"
        )
