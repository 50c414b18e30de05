"""KL to the reference policy, per token. Dims: T completion tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from grpo_cli.config import Node

if TYPE_CHECKING:
    from torch import Tensor


class Kl(Node):
    """beta times an estimator of KL(policy || base), in the loss. The base is the adapter off."""

    beta: float = Field(0.0, ge=0)
    """0 switches the term off, and no reference log-probability is computed."""
    kind: Literal["k3"] = "k3"
    """k3 = exp(ref - logp) - (ref - logp) - 1; GRPO arXiv:2402.03300 Eq. 4."""


def kl_estimate(logp_T: Tensor, ref_logp_T: Tensor) -> Tensor:
    """k3 per token, shape (T,), never negative.

    As a loss on on-policy samples its gradient is that of the *forward* KL(ref || policy).
    """
    diff_T = ref_logp_T - logp_T
    return diff_T.exp() - diff_T - 1
