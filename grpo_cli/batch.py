"""From scored groups to a batch: rewards become advantages. Dims: N sequences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from grpo_cli.forward import Forward
from grpo_cli.objective.advantage import advantages
from grpo_cli.objective.aggregate import minibatch_of
from grpo_cli.objective.kl import kl_estimate
from grpo_cli.objective.shaping import masks_truncated
from grpo_cli.policy.policy import Policy
from grpo_cli.recipe.schema import Recipe
from grpo_cli.rollout.collect import is_truncated
from grpo_cli.types import Batch, ScoredGroup


def build_batch(
    policy: Policy,
    adapter: str,
    reference: str | None,
    groups: Sequence[ScoredGroup],
    recipe: Recipe,
) -> Batch:
    """Advantages from shaped rewards, and how many tokens of each sequence may train.

    With `kl.kind: k1_reward` the KL to the reference is taken off the rewards first.
    """
    reward_N = torch.tensor([r for g in groups for r in g.rewards], dtype=torch.float64)
    prompt_N = torch.tensor([i for i, g in enumerate(groups) for _ in g.rewards])
    mask = masks_truncated(recipe.overlong)
    completions = [c for g in groups for c in g.group.completions]
    verdicts = [v for g in groups for v in g.verdicts]
    full_length_N = torch.tensor(
        [0 if v.missing else len(c.logp) for c, v in zip(completions, verdicts, strict=True)]
    )
    out_N = torch.tensor([mask and is_truncated(c) for c in completions])
    batch = Batch(
        prompt_ids_N=tuple(g.group.prompt_ids for g in groups for _ in g.rewards),
        completion_ids_N=tuple(c.token_ids for c in completions),
        sampler_logp_N=tuple(c.logp for c in completions),
        adv_N=torch.zeros_like(reward_N),
        length_N=full_length_N.masked_fill(out_N, 0),
        full_length_N=full_length_N,
        prompt_N=prompt_N,
    )
    if recipe.kl.in_reward:
        kl_N = _kl_to_reference(Forward(policy, batch, recipe), adapter, reference)
        batch = replace(batch, kl_N=kl_N)
        reward_N = reward_N - recipe.kl.beta * kl_N
    adv_N = advantages(
        reward_N,
        prompt_N,
        recipe.advantage,
        length_N=torch.tensor([len(c.logp) for c in completions]),
    )
    batch.adv_N.copy_(adv_N)
    return batch


def _kl_to_reference(forward: Forward, adapter: str, reference: str | None) -> Tensor:
    """Sum over tokens of log policy - log reference, shape (N,); 0 without a verdict.

    Sequences that are masked out of the loss count too: their rewards are in the baseline.
    """
    batch = forward.batch
    total_N = torch.zeros(len(batch.completion_ids_N), dtype=torch.float64)
    everything = [n for n in range(len(total_N)) if batch.full_length_N[n]]
    with torch.no_grad():
        for rows in forward.micro_batches(everything):
            old_T, _ = forward.logprobs(rows, adapter)
            ref_T, _ = forward.logprobs(rows, reference)
            k1_T = kl_estimate("k1_reward", old_T, ref_T, old_T).double().cpu()
            total_N[rows] = torch.stack([k1.sum() for k1 in k1_T.split(forward.lengths(rows))])
    return total_N


def minibatches(batch: Batch, count: int) -> list[list[int]]:
    """The sequences of each minibatch that has any."""
    groups = batch.prompt_N.tolist()
    part_of = minibatch_of(max(groups) + 1, count)
    return [[n for n, g in enumerate(groups) if part_of[g] == part] for part in sorted({*part_of})]
