"""GSPO: one clipped ratio per sequence. Dims: T completion tokens, N sequences."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from grpo_cli.objective.base import Objective, clip_metrics, sequence_mean
from grpo_cli.types import TokenLoss, Tokens


class Gspo(Objective):
    """ell_t = -min(s A, clip(s, 1 - low, 1 + high) A), s = exp(mean_t log r_t), the same for all t.

    The mean over tokens belongs to the definition: the plain product of token ratios leaves any
    usable clip range after a few hundred tokens. With `seq_mean` this is the paper's objective;
    with `token_mean` long answers count more (it is not GSPO then).
    """

    kind: Literal["gspo"] = "gspo"
    sequence_level: ClassVar[bool] = True
    source: ClassVar[str] = "arXiv:2507.18071 Eq. 5 and 7"
    low: float = Field(3e-4, ge=0, le=1)
    """Lower bound 1 - low of the sequence ratio; acts where A < 0."""
    high: float = Field(4e-4, ge=0)
    """Upper bound 1 + high of the sequence ratio; acts where A > 0."""

    def __call__(self, x: Tokens) -> TokenLoss:
        """Per-token loss, shape (T,), constant within a sequence."""
        import torch

        ratio_N = sequence_mean(x.logp_T - x.old_logp_T, x).exp()
        clipped_N = ratio_N.clamp(1 - self.low, 1 + self.high)
        ell_N = -torch.minimum(ratio_N * x.adv_N, clipped_N * x.adv_N)
        is_high_N = (ratio_N > 1 + self.high) & (x.adv_N > 0)
        is_low_N = (ratio_N < 1 - self.low) & (x.adv_N < 0)
        return TokenLoss(ell_N[x.seq_T], clip_metrics(is_low_N[x.seq_T], is_high_N[x.seq_T], x))

    def formula(self) -> str:
        """The per-token loss with its numbers."""
        bounds = f"clip(s, {1 - self.low:g}, {1 + self.high:g}) A"
        return f"-min(s A, {bounds}), s = exp(mean over the sequence of log r)"
