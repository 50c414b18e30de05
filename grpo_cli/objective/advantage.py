"""Group advantages: rewards -> one number per sequence. Dims: P prompts, G samples, N = P*G."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from grpo_cli.config import Node

if TYPE_CHECKING:
    from torch import Tensor


class Advantage(Node):
    """A = (R - group mean) / (scale + epsilon); GRPO arXiv:2402.03300 Section 4.1.2."""

    scale: Literal["group", "batch", "none"] = "group"
    """Divide by the standard deviation of the group's rewards, of all rewards of the batch
    (arXiv:2508.08221), or not at all (Dr. GRPO, arXiv:2503.20783)."""
    ddof: int = Field(1, ge=0, le=1)
    """1 divides the variance by n - 1 (TRL, verl, OpenRLHF), 0 by n."""
    epsilon: float = Field(1e-6, ge=0)
    """Added to the standard deviation. An implementation guard, not in the papers (verl 1e-6, TRL
    1e-4). A group of equal rewards is exactly 0 whatever its value."""


def advantages(reward_N: Tensor, prompt_N: Tensor, settings: Advantage) -> Tensor:
    """Advantage of every sequence, shape (N,), in the dtype of `reward_N`.

    Args:
        reward_N: rewards after shaping; NaN marks a missing verdict, which is left out of the mean
            and the standard deviation and gets advantage 0.
        prompt_N: index of each sequence's group, any order.

    A group whose valid rewards are all equal, or with fewer than two of them, is exactly 0:
    comparing max with min instead of testing `std > 0` keeps float residue out
    (`[0.01] * 8` has a float32 standard deviation above 0).

    Example:
        rewards [1, 0, 0, 0] of one group, scale none -> [0.75, -0.25, -0.25, -0.25]
    """
    import torch

    adv_N = torch.zeros_like(reward_N)
    valid_N = ~reward_N.isnan()
    valid_rewards = reward_N[valid_N]
    if settings.scale == "batch" and valid_rewards.numel() > 1:
        batch_scale = valid_rewards.std(correction=settings.ddof) + settings.epsilon
    for group in prompt_N.unique():
        member_N = (prompt_N == group) & valid_N
        rewards = reward_N[member_N]
        if rewards.numel() < 2 or rewards.max() == rewards.min():
            continue
        centred = rewards - rewards.mean()
        if settings.scale == "group":
            centred = centred / (rewards.std(correction=settings.ddof) + settings.epsilon)
        elif settings.scale == "batch":
            centred = centred / batch_scale
        adv_N[member_N] = centred
    return adv_N
