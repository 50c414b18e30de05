"""Advantages: rewards -> one number per sequence. Dims: P prompts, G samples, N = P*G."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from grpo_cli.config import Node

if TYPE_CHECKING:
    from torch import Tensor

# Words and source of each choice.
_BASELINES = {
    "group_mean": ("mean of the group", "GRPO arXiv:2402.03300 Sec. 4.1.2"),
    "leave_one_out": ("mean of the others in the group", "RLOO arXiv:2402.14740"),
    "batch_mean": ("mean of the batch", ""),
    "length_weighted": ("mean of the group weighted by length", "OPO arXiv:2505.23585"),
    "critic": ("value of the critic, per token (GAE)", "GAE arXiv:1506.02438"),
    "none": ("0", ""),
}
_SCALES = {
    "group": ("std of the group's rewards", "GRPO arXiv:2402.03300 Sec. 4.1.2"),
    "batch": ("std of the batch's rewards", "arXiv:2508.08221"),
    "batch_centred": ("std of the batch's centred rewards", "ScaleRL arXiv:2510.13786"),
    "batch_tokens": ("token-weighted whitening of the batch", "REINFORCE++ arXiv:2501.03262"),
    "mean": ("mean of the group", "MaxRL arXiv:2602.02710"),
    "none": ("1", "no std: Dr. GRPO arXiv:2503.20783"),
}


class Advantage(Node):
    """A = (R - baseline) / (scale + epsilon); GRPO arXiv:2402.03300 Section 4.1.2."""

    baseline: Literal[
        "group_mean", "leave_one_out", "batch_mean", "length_weighted", "critic", "none"
    ] = "group_mean"
    """What is taken off a reward: the group's mean (GRPO), the mean of the group's other samples
    (RLOO), the batch's mean, the group's mean weighted by length (OPO), a critic's value at each
    token (`critic.kind: value`; GAE), or nothing."""
    scale: Literal["group", "batch", "batch_centred", "batch_tokens", "mean", "none"] = "group"
    """What the difference is divided by: the standard deviation of the group's rewards (GRPO), of
    the batch's rewards, of the batch's centred rewards (ScaleRL), a token-weighted whitening
    (REINFORCE++), the group's mean reward (MaxRL), or nothing (Dr. GRPO)."""
    ddof: int = Field(1, ge=0, le=1)
    """1 divides the variance by n - 1 (TRL, verl, OpenRLHF), 0 by n."""
    epsilon: float = Field(1e-6, ge=0)
    """Added to the standard deviation. An implementation guard, not in the papers (verl 1e-6, TRL
    1e-4). A group of equal rewards is exactly 0 whatever its value."""

    @property
    def source(self) -> str:
        """Where baseline and scale come from."""
        found = (_BASELINES[self.baseline][1], _SCALES[self.scale][1])
        return "; ".join(dict.fromkeys(text for text in found if text))

    def formula(self) -> str:
        """The advantage with its choices named."""
        top = f"R - {_BASELINES[self.baseline][0]}"
        scale = _SCALES[self.scale][0]
        if self.scale == "none":
            return top
        if self.scale in ("mean", "batch_tokens"):
            return f"({top}) / {scale}"
        return f"({top}) / ({scale} + {self.epsilon:g}), ddof {self.ddof}"


def advantages(
    reward_N: Tensor,
    prompt_N: Tensor,
    settings: Advantage,
    *,
    length_N: Tensor | None = None,
) -> Tensor:
    """Advantage of every sequence, shape (N,), in the dtype of `reward_N`.

    Args:
        reward_N: rewards after shaping; NaN marks a missing verdict, which is left out of every
            mean and deviation and gets advantage 0.
        prompt_N: index of each sequence's group, any order.
        length_N: tokens of each sequence; needed by `length_weighted` and `batch_tokens`.

    With a baseline from the group, a group whose valid rewards are all equal, or with fewer than
    two of them, is exactly 0: comparing max with min instead of testing `std > 0` keeps float
    residue out (`[0.01] * 8` has a float32 standard deviation above 0).

    Example:
        rewards [1, 0, 0, 0] of one group, scale none -> [0.75, -0.25, -0.25, -0.25]
    """
    import torch

    valid_N = ~reward_N.isnan()
    centred_N = torch.zeros_like(reward_N)
    flat_N = torch.zeros_like(valid_N)  # sequences of a group without contrast
    for group in prompt_N.unique():
        member_N = (prompt_N == group) & valid_N
        rewards = reward_N[member_N]
        if not rewards.numel():
            continue
        if rewards.numel() < 2 or rewards.max() == rewards.min():
            flat_N |= member_N
        centred = rewards - _baseline(rewards, member_N, reward_N[valid_N], settings, length_N)
        if settings.scale == "group" and rewards.numel() > 1:
            centred = centred / (rewards.std(correction=settings.ddof) + settings.epsilon)
        elif settings.scale == "mean":
            mean = rewards.mean()
            centred = centred / mean if mean != 0 else torch.zeros_like(centred)
        centred_N[member_N] = centred
    if settings.baseline not in ("batch_mean", "none"):
        centred_N[flat_N] = 0
    if valid_N.sum() > 1:
        centred_N[valid_N] = _batch_scaled(
            centred_N[valid_N],
            reward_N[valid_N],
            settings,
            None if length_N is None else length_N[valid_N],
        )
    return centred_N


def _baseline(
    rewards: Tensor,
    member_N: Tensor,
    all_rewards: Tensor,
    settings: Advantage,
    length_N: Tensor | None,
) -> Tensor:
    kind = settings.baseline
    if kind == "none":
        return rewards.new_zeros(())
    if kind == "batch_mean":
        return all_rewards.mean()
    if kind == "leave_one_out":
        return (rewards.sum() - rewards) / max(rewards.numel() - 1, 1)
    if kind == "length_weighted":
        assert length_N is not None, "length_weighted needs lengths"
        length = length_N[member_N].to(rewards.dtype)
        return (length * rewards).sum() / length.sum()
    return rewards.mean()


def _batch_scaled(
    centred: Tensor, rewards: Tensor, settings: Advantage, length_N: Tensor | None
) -> Tensor:
    if settings.scale == "batch_tokens":
        assert length_N is not None, "batch_tokens needs lengths"
        length = length_N.to(centred.dtype)
        count = length.sum()
        mean = (length * centred).sum() / count
        variance = (length * (centred - mean) ** 2).sum() / (count - 1)
        return (centred - mean) * (variance + 1e-8).rsqrt()
    if settings.scale not in ("batch", "batch_centred") or not centred.any():
        return centred
    spread = rewards if settings.scale == "batch" else centred
    return centred / (spread.std(correction=settings.ddof) + settings.epsilon)
