"""Generalised advantage estimation, value loss and the settings of a critic.

Dims: N sequences, T completion tokens laid end to end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

from grpo_cli.config import Node

if TYPE_CHECKING:
    from torch import Tensor


class NoCritic(Node):
    """Advantages come from rewards alone: one number per sequence."""

    kind: Literal["none"] = "none"
    source: ClassVar[str] = ""

    def formula(self) -> str:
        """The rule."""
        return "none: one advantage per sequence"


class ValueCritic(Node):
    """A value head with a LoRA adapter of its own on the same base; one advantage per token.

    delta_t = r_t + gamma V_{t+1} - V_t, A_t = delta_t + gamma lambda A_{t+1}, target A_t + V_t;
    the policy and the critic have separate lambdas (VAPO's decoupled GAE).
    """

    kind: Literal["value"] = "value"
    source: ClassVar[str] = (
        "GAE arXiv:1506.02438 Eq. 16; PPO arXiv:1707.06347; VAPO arXiv:2504.05118"
    )
    lr: float = Field(1e-3, gt=0)
    """Of the critic's AdamW, constant. The critic takes one step per minibatch and epoch."""
    pretrain_steps: int = Field(0, ge=0)
    """Rollout batches at the start of the run, part of `optim.steps`, on which only the critic
    trains while the policy stays as it is (VAPO Section 4.1: 50)."""
    gamma: float = Field(1.0, gt=0, le=1)
    critic_lambda: float = Field(1.0, ge=0, le=1)
    """Of the critic's targets; 1 is the Monte-Carlo return."""
    policy_lambda: float = Field(0.95, ge=0, le=1)
    """Of the policy's advantages, unless `length_alpha` is set."""
    length_alpha: float | None = Field(None, gt=0)
    """The policy's lambda grows with the length l of a sequence: 1 - 1 / (length_alpha l), at least
    0 (VAPO Section 4.2: 0.05)."""
    clip: float | None = Field(0.2, gt=0)
    """How far a value may move from the one before the batch's first update before its gradient
    stops; null does not clip."""

    def formula(self) -> str:
        """The estimator with its numbers."""
        lam = f"{self.policy_lambda:g}"
        if self.length_alpha is not None:
            lam = f"max(0, 1 - 1 / ({self.length_alpha:g} L))"
        text = (
            f"A_t = sum_k (gamma lambda)^k delta_t+k, gamma {self.gamma:g}, lambda {lam}; "
            f"critic: lambda {self.critic_lambda:g}, lr {self.lr:g}"
        )
        if self.pretrain_steps:
            text += f", alone for the first {self.pretrain_steps} batches"
        return text


AnyCritic = NoCritic | ValueCritic
Critic = Annotated[AnyCritic, Field(discriminator="kind")]


def policy_lambda(length_N: Tensor, settings: ValueCritic) -> Tensor:
    """The lambda of each sequence's advantages, shape (N,), float64. VAPO arXiv:2504.05118 Eq. 9.

    Example:
        length_alpha 0.05: lengths 5, 20, 100, 1000 -> 0, 0, 0.8, 0.98
    """
    length_N = length_N.double()
    if settings.length_alpha is None:
        return length_N.new_full(length_N.shape, settings.policy_lambda)
    return (1 - 1 / (settings.length_alpha * length_N.clamp(min=1))).clamp(min=0)


def gae(
    reward_T: Tensor, value_T: Tensor, length_N: Tensor, gamma: float, lambda_N: Tensor
) -> Tensor:
    """Advantage of every token, shape (T,), in the dtype of `value_T`. arXiv:1506.02438 Eq. 16.

    Args:
        reward_T: reward of each token; with an outcome reward, 0 but for the last of a sequence.
        value_T: expected return before each token; after the last one it is 0.
        length_N: tokens of each sequence, at least 1.
        lambda_N: one lambda per sequence.
    """
    import torch

    lengths = length_N.tolist()
    reward = torch.nn.utils.rnn.pad_sequence(reward_T.split(lengths))
    value = torch.nn.utils.rnn.pad_sequence(value_T.split(lengths))
    advantage = torch.zeros_like(value)
    # Padding holds zeros only, so the recursion starts at every sequence's own last token.
    next_value, next_advantage = torch.zeros_like(value[0]), torch.zeros_like(value[0])
    decay = gamma * lambda_N.to(value)
    for t in range(len(value) - 1, -1, -1):
        delta = reward[t] + gamma * next_value - value[t]
        next_advantage = delta + decay * next_advantage
        next_value = value[t]
        advantage[t] = next_advantage
    return torch.cat([advantage[:length, n] for n, length in enumerate(lengths)])


def whitened(advantage_T: Tensor) -> Tensor:
    """Mean 0 and variance 1 over the tokens (ddof 1, as in verl); unchanged with fewer than 2."""
    if len(advantage_T) < 2:
        return advantage_T
    centred_T = advantage_T - advantage_T.mean()
    return centred_T * (centred_T.var(correction=1) + 1e-8).rsqrt()


def value_loss(
    value_T: Tensor, old_value_T: Tensor, return_T: Tensor, clip: float | None
) -> tuple[Tensor, Tensor]:
    """Half the squared error of each token, (T,), and where the clip stops its gradient.

    PPO arXiv:1707.06347 as implemented: max((V - R)^2, (V_old + clamp(V - V_old) - R)^2) / 2.
    """
    free_T = (value_T - return_T) ** 2
    if clip is None:
        return free_T / 2, free_T.new_zeros(free_T.shape).bool()
    bounded_T = old_value_T + (value_T - old_value_T).clamp(-clip, clip)
    held_T = (bounded_T - return_T) ** 2
    return free_T.maximum(held_T) / 2, held_T > free_T
