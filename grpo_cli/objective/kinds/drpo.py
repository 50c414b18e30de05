"""DRPO: a quadratic penalty on the ratio, scaled by the old probability. Dims: T, N."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from grpo_cli.objective.base import Objective, clip_metrics
from grpo_cli.types import TokenLoss, Tokens

_MAX_LOG_RATIO = 40.0


class Drpo(Objective):
    """ell = -(r A - |A| / (2 delta) pi_old (r - 1)^2).

    The gradient's weight is r (1 - sign(A) (pi - pi_old) / delta): it vanishes where the
    probability has moved by delta.
    """

    kind: Literal["drpo"] = "drpo"
    source: ClassVar[str] = "arXiv:2606.09821 (formula from secondary sources)"
    delta: float = Field(gt=0)
    """How far a probability may move. No default: the published value is not consistent with the
    published bound."""

    def __call__(self, x: Tokens) -> TokenLoss:
        """Per-token loss, shape (T,)."""
        import torch

        adv_T = x.adv_T
        # The square of a larger ratio leaves float32.
        ratio_T = (x.logp_T - x.old_logp_T).clamp(max=_MAX_LOG_RATIO).exp()
        pull_T = adv_T.abs() / (2 * self.delta) * x.old_logp_T.exp() * (ratio_T - 1) ** 2
        never_T = torch.zeros_like(x.seq_T, dtype=torch.bool)
        return TokenLoss(pull_T - ratio_T * adv_T, clip_metrics(never_T, never_T, x))

    def formula(self) -> str:
        """The per-token loss with its numbers."""
        return f"-(r A - |A| / {2 * self.delta:g} pi_old (r - 1)^2)"
