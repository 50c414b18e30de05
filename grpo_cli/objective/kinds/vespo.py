"""VESPO: a gamma kernel on the sequence's product ratio. Dims: T, N."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from grpo_cli.objective.base import Objective, clip_metrics, sequence_mean
from grpo_cli.types import TokenLoss, Tokens


class Vespo(Objective):
    """ell_t = -sg[phi(W)] A logp, phi(W) = exp(lambda + k log W - lambda W), W = prod_t r_t.

    k and lambda by the sign of A; phi(1) = 1. With `correction.bypass` W is policy / sampler, as
    in the paper.
    """

    kind: Literal["vespo"] = "vespo"
    sequence_level: ClassVar[bool] = True
    source: ClassVar[str] = "arXiv:2602.10693"
    k_pos: float = Field(2.0, ge=0)
    """Exponent where A >= 0."""
    lambda_pos: float = Field(3.0, gt=0)
    """Decay where A >= 0."""
    k_neg: float = Field(3.0, ge=0)
    """Exponent where A < 0."""
    lambda_neg: float = Field(2.0, gt=0)
    """Decay where A < 0."""

    def __call__(self, x: Tokens) -> TokenLoss:
        """Per-token loss, shape (T,)."""
        import torch

        log_w_N = sequence_mean((x.logp_T - x.old_logp_T).detach(), x) * x.length_N
        positive_N = x.adv_N >= 0
        k_N = torch.full_like(log_w_N, self.k_neg).masked_fill(positive_N, self.k_pos)
        lambda_N = torch.full_like(log_w_N, self.lambda_neg)
        lambda_N = lambda_N.masked_fill(positive_N, self.lambda_pos)
        phi_N = (lambda_N + k_N * log_w_N - lambda_N * log_w_N.exp()).exp()
        never_T = torch.zeros_like(x.seq_T, dtype=torch.bool)
        return TokenLoss(-phi_N[x.seq_T] * x.adv_T * x.logp_T, clip_metrics(never_T, never_T, x))

    def formula(self) -> str:
        """The per-token loss with its numbers."""
        return (
            "-sg[exp(lambda + k log W - lambda W)] A log pi, W = prod r, (k, lambda) = "
            f"({self.k_pos:g}, {self.lambda_pos:g}) where A >= 0, else "
            f"({self.k_neg:g}, {self.lambda_neg:g})"
        )
