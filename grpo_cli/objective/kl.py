"""KL to the reference policy, per token. Dims: T completion tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from grpo_cli.config import Node

if TYPE_CHECKING:
    from torch import Tensor

_FORMULAS = {
    "k1_reward": "R - {beta:g} sum_t(log pi_old - log ref)",
    "k2": "{beta:g} (log pi - log ref)^2 / 2",
    "k3": "{beta:g} (exp(x) - x - 1), x = log ref - log pi",
    "k3_plus": "{beta:g} k3 in value, the gradient of k2",
    "k3_weighted": "{beta:g} r k3, with the gradient through r",
}
_SOURCES = {
    "k1_reward": "RLOO arXiv:2402.14740",
    "k2": "Schulman 2020, joschu.net/blog/kl-approx",
    "k3": "GRPO arXiv:2402.03300 Eq. 4",
    "k3_plus": "verl `k3+`",
    "k3_weighted": "DeepSeek-V3.2 arXiv:2512.02556 Eq. 7",
}


class Kl(Node):
    """beta times an estimator of KL(policy || reference), in the loss or in the reward."""

    beta: float = Field(0.0, ge=0)
    """0 switches the term off, and no reference log-probability is computed."""
    kind: Literal["k1_reward", "k2", "k3", "k3_plus", "k3_weighted"] = "k3"
    """As a loss on on-policy samples k2, k3_plus and k3_weighted have the gradient of the KL that
    is meant; k3 has that of the forward KL(reference || policy)."""
    refresh_every: int | None = Field(None, ge=1)
    """null: the reference is the base model (adapter off). N: a copy of the policy, renewed every N
    steps, as DeepSeek-R1 does every 400."""

    @property
    def source(self) -> str:
        """Where the estimator comes from."""
        return _SOURCES[self.kind] if self.beta else ""

    @property
    def in_loss(self) -> bool:
        """Whether a KL term is part of the loss."""
        return self.beta > 0 and self.kind != "k1_reward"

    @property
    def in_reward(self) -> bool:
        """Whether a KL term is taken off the rewards."""
        return self.beta > 0 and self.kind == "k1_reward"

    def formula(self) -> str:
        """The term with its number, or `off`."""
        return _FORMULAS[self.kind].format(beta=self.beta) if self.beta else "off"


def kl_estimate(
    kind: Literal["k1_reward", "k2", "k3", "k3_plus", "k3_weighted"],
    logp_T: Tensor,
    ref_logp_T: Tensor,
    old_logp_T: Tensor,
) -> Tensor:
    """The estimator per token, shape (T,). `k1_reward` belongs in the reward: no gradient."""
    diff_T = ref_logp_T - logp_T
    k2_T = diff_T**2 / 2
    if kind == "k1_reward":
        return old_logp_T - ref_logp_T
    if kind == "k2":
        return k2_T
    k3_T = diff_T.exp() - diff_T - 1
    if kind == "k3_plus":
        return k2_T + (k3_T - k2_T).detach()
    return (logp_T - old_logp_T).exp() * k3_T if kind == "k3_weighted" else k3_T
