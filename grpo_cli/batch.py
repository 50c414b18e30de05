"""From scored groups to a batch: rewards become advantages. Dims: N sequences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from grpo_cli.critic import Critic
from grpo_cli.forward import Forward, forward_of, joined
from grpo_cli.objective.advantage import advantages
from grpo_cli.objective.aggregate import minibatch_of
from grpo_cli.objective.gae import gae, policy_lambda, whitened
from grpo_cli.objective.kl import kl_estimate
from grpo_cli.objective.shaping import masks_truncated
from grpo_cli.policy.policy import Policy
from grpo_cli.recipe.schema import Recipe
from grpo_cli.rollout.collect import is_truncated
from grpo_cli.support import Support
from grpo_cli.types import Batch, Completion, ScoredGroup


def build_batch(
    policy: Policy,
    adapter: str,
    reference: str | None,
    groups: Sequence[ScoredGroup],
    recipe: Recipe,
    critic: Critic | None = None,
) -> Batch:
    """Advantages from shaped rewards, and how many tokens of each sequence may train.

    With `kl.kind: k1_reward` the KL to the reference is taken off the rewards first; with a critic
    each token's KL is taken off that token.
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
        right_N=torch.tensor([v.score == 1 for v in verdicts]),
        routing_N=_routing(completions),
        support_N=_support(completions),
    )
    k1_of: dict[int, Tensor] = {}
    if recipe.kl.in_reward:
        k1_of = _kl_to_reference(forward_of(policy, batch, recipe, adapter), adapter, reference)
        kl_N = torch.zeros_like(reward_N)
        for n, k1_T in k1_of.items():
            kl_N[n] = k1_T.sum()
        batch = replace(batch, kl_N=kl_N)
        if critic is None:
            reward_N = reward_N - recipe.kl.beta * kl_N
    if critic is not None:
        return _with_values(batch, Forward(policy, batch, recipe), critic, reward_N, k1_of)
    adv_N = advantages(
        reward_N,
        prompt_N,
        recipe.advantage,
        length_N=torch.tensor([len(c.logp) for c in completions]),
    )
    batch.adv_N.copy_(adv_N)
    return batch


def _routing(completions: Sequence[Completion]) -> tuple[Tensor, ...] | None:
    found = [c.routing for c in completions if c.routing is not None]
    return tuple(found) if found and len(found) == len(completions) else None


def _support(completions: Sequence[Completion]) -> tuple[Support, ...] | None:
    found = [c.support for c in completions if c.support is not None]
    assert len(found) in (0, len(completions)), "a batch is truncated as a whole or not at all"
    return tuple(found) or None


def _with_values(
    batch: Batch,
    forward: Forward,
    critic: Critic,
    reward_N: Tensor,
    k1_of: Mapping[int, Tensor],
) -> Batch:
    """The batch with the critic's values, its targets and one advantage per token."""
    rows = [n for n in range(len(reward_N)) if batch.length_N[n]]
    if not rows:
        return replace(batch, token_adv_N={}, value_N={}, return_N={})
    found, settings = critic.values(forward, rows), critic.settings
    value_T = joined(found, rows).double().cpu()
    length_N = batch.length_N[rows]
    reward_T = torch.zeros_like(value_T)
    reward_T[length_N.cumsum(0) - 1] = reward_N[rows]
    if k1_of:
        reward_T -= forward.recipe.kl.beta * joined(k1_of, rows)

    def estimate(lambda_N: Tensor) -> Tensor:
        return gae(reward_T, value_T, length_N, settings.gamma, lambda_N)

    adv_T = estimate(policy_lambda(length_N, settings))
    if forward.recipe.advantage.scale == "batch_tokens":
        adv_T = whitened(adv_T)
    fixed_N = torch.full((len(rows),), settings.critic_lambda, dtype=torch.float64)
    return_T = estimate(fixed_N) + value_T
    token_adv = forward.by_sequence(rows, adv_T)
    batch.adv_N[rows] = torch.stack([token_adv[n].mean() for n in rows])
    return replace(
        batch,
        token_adv_N=token_adv,
        value_N=forward.by_sequence(rows, value_T),
        return_N=forward.by_sequence(rows, return_T),
    )


def _kl_to_reference(forward: Forward, adapter: str, reference: str | None) -> dict[int, Tensor]:
    """Sequence -> log policy - log reference of each token; none without a verdict.

    Sequences that are masked out of the loss count too: their rewards are in the baseline.
    """
    batch = forward.batch
    found: dict[int, Tensor] = {}
    everything = [n for n in range(len(batch.full_length_N)) if batch.full_length_N[n]]
    with torch.no_grad():
        for rows in forward.micro_batches(everything):
            old_T, _ = forward.logprobs(rows, adapter)
            ref_T, _ = forward.logprobs(rows, reference)
            k1_T = kl_estimate("k1_reward", old_T, ref_T, old_T).double().cpu()
            found |= forward.by_sequence(rows, k1_T)
    return found


def minibatches(batch: Batch, count: int) -> list[list[int]]:
    """The sequences of each minibatch that has any."""
    groups = batch.prompt_N.tolist()
    part_of = minibatch_of(max(groups) + 1, count)
    return [[n for n, g in enumerate(groups) if part_of[g] == part] for part in sorted({*part_of})]
