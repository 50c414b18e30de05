"""The optimizer steps on a batch: micro-batches, the old policy, masks, what is not finite."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import pytest
import torch

from grpo_cli.batch import build_batch
from grpo_cli.policy.policy import Policy
from grpo_cli.recipe.load import load
from grpo_cli.recipe.schema import Recipe
from grpo_cli.rollout.collect import score
from grpo_cli.rollout.engine import Request
from grpo_cli.rollout.transformers_engine import TransformersEngine
from grpo_cli.seeds import sample_seed
from grpo_cli.types import RolloutGroup, ScoredGroup, Status, Verdict
from grpo_cli.update import update
from grpo_cli.update_result import UpdateResult

SMALL = ("sampling.prompts_per_step=6", "sampling.group_size=4", "sampling.max_tokens=30")


def recipe(*sets: str, name: str = "grpo") -> Recipe:
    return load(name, sets=[*SMALL, "kl.beta=0", *sets]).recipe


def groups(policy: Policy, prompts, chosen: Recipe) -> list[ScoredGroup]:
    """Real completions of `arm0`; every other sample counts as right: all groups have contrast."""
    engine = TransformersEngine(policy, 64)
    size = chosen.sampling.group_size
    found = []
    for prompt in prompts[: chosen.sampling.prompts_per_step]:
        ids = policy.render(prompt.messages)
        requests = [
            Request(ids, sample_seed(0, 1, prompt.id, k), "arm0", chosen.sampling.max_tokens, 1.0)
            for k in range(size)
        ]
        verdicts = tuple(Verdict(float(k % 2), Status.OK) for k in range(size))
        group = RolloutGroup(prompt, ids, tuple(engine.sample(requests)))
        found.append(score(group, chosen, verdicts))
    return found


def run(
    policy: Policy, chosen: Recipe, scored: Sequence[ScoredGroup], reference: str | None = None
) -> tuple[dict[str, torch.Tensor], UpdateResult]:
    """Adapter after one update from `arm0`'s weights, and what the update says."""
    policy.copy_adapter("arm0", "arm1")
    parameters = policy.parameters("arm1")
    optimizer = torch.optim.SGD(parameters.values(), lr=0.1)
    batch = build_batch(policy, "arm1", reference, scored, chosen)
    result = update(policy, "arm1", reference, optimizer, batch, chosen, 0)
    return {name: p.detach().clone() for name, p in parameters.items()}, result


CHOICES = [
    (),
    ("aggregate={kind: token_mean}",),
    ("aggregate={kind: prompt_mean}", "advantage.scale=batch_tokens"),
    ("objective={kind: gspo, low: 0.2, high: 0.2}", "optim.epochs_per_batch=2"),
    ("kl={beta: 0.1, kind: k3_weighted}", "aggregate={kind: constant}"),
    ("kl={beta: 0.05, kind: k1_reward}",),
    ("entropy={kind: bonus, coef: 0.1}",),
    ("entropy={kind: top_quantile, frac: 0.3}",),
    ("correction={kind: geo_rs}",),
    ("correction={kind: icepop, bypass: true}", "objective={kind: reinforce}"),
]


@pytest.mark.parametrize("sets", CHOICES, ids=lambda s: " ".join(s) or "grpo")
def test_micro_batches_change_nothing(policy: Policy, prompts, sets: tuple[str, ...]) -> None:
    first, *rest = groups(policy, prompts, recipe(*sets))
    # One group comes from a sampler that disagrees, so that corrections have something to do.
    scored = [_with_sampler_shift(first, -0.5), *rest]
    whole, one = run(policy, recipe(*sets), scored)
    for tokens in (1, 200):
        cut = recipe(*sets, f"learner.micro_batch_tokens={tokens}")
        parts, other = run(policy, cut, scored)
        for name in whole:
            assert (whole[name] - parts[name]).abs().max() < 1e-5, name
        for name, value in one.scalars().items():
            assert other.scalars()[name] == pytest.approx(value, rel=1e-3, abs=1e-4), name


def test_one_minibatch_is_exactly_on_policy(policy: Policy, prompts) -> None:
    chosen = recipe("optim.minibatches=1")
    _, result = run(policy, chosen, groups(policy, prompts, chosen))
    scalars = result.scalars()
    assert scalars["ratio/max"] == scalars["ratio/p50"] == 1
    assert scalars["ratio/clipped_high_frac"] == scalars["ratio/clipped_low_frac"] == 0


def test_the_old_policy_is_the_one_before_the_first_minibatch(policy: Policy, prompts) -> None:
    # A large step moves the policy; the second minibatch must see it in its ratio.
    chosen = recipe("optim.minibatches=2")
    scored = groups(policy, prompts, chosen)
    _, result = run(policy, chosen, scored)
    assert result.scalars()["ratio/max"] > 1.001
    assert result.updates == 2
    # The sampler was the policy before the first step, so it agrees with the old one, not the new.
    completions = [c for g in scored for c in g.group.completions]
    for n, logp_T in result.learner_logp.items():
        sampler_T = torch.tensor(completions[n].logp)
        assert (logp_T - sampler_T).abs().max() < 1e-4


def test_bypass_takes_the_sampler_as_the_old_policy(policy: Policy, prompts) -> None:
    chosen = recipe("optim.minibatches=1", "correction={kind: none, bypass: true}")
    scored = groups(policy, prompts, chosen)
    shifted = [_with_sampler_shift(group, -0.5) for group in scored]
    _, result = run(policy, chosen, shifted)
    assert result.scalars()["ratio/p50"] == pytest.approx(math.exp(0.5), rel=1e-3)


def test_raw_weights_are_logged_before_truncation(policy: Policy, prompts) -> None:
    chosen = recipe("optim.minibatches=1", "correction={kind: tis_token, cap: 2}")
    scored = [_with_sampler_shift(g, -math.log(5)) for g in groups(policy, prompts, chosen)]
    _, result = run(policy, chosen, scored)
    assert result.scalars()["correction/weight_max"] == pytest.approx(5, rel=1e-3)
    assert result.scalars()["correction/modified_frac"] == 1


def test_rejected_sequences_leave_the_loss(policy: Policy, prompts) -> None:
    chosen = recipe("optim.minibatches=1", "correction={kind: geo_rs}")
    scored = groups(policy, prompts, chosen)
    shifted = [_with_sampler_shift(scored[0], -0.5), *scored[1:]]
    _, result = run(policy, chosen, shifted)
    assert result.scalars()["correction/rejected_frac"] == pytest.approx(1 / 6)
    # The raw weights of the rejected count too: exp(0.5) is far outside the bounds.
    assert result.scalars()["correction/weight_max"] == pytest.approx(math.exp(0.5), rel=1e-3)
    assert result.scalars()["correction/ess_seq"] < 0.99
    assert result.scalars()["loss/weight_sum"] == pytest.approx(1)
    kept = recipe(
        "optim.minibatches=1",
        "correction={kind: geo_rs}",
        "aggregate={kind: seq_mean, masked_in_denominator: true}",
    )
    _, result = run(policy, kept, shifted)
    assert result.scalars()["loss/weight_sum"] == pytest.approx(5 / 6)


def test_dro_pulls_on_sequences_without_advantage(policy: Policy, prompts) -> None:
    chosen = recipe("objective={kind: dro}", "optim.minibatches=2", "advantage.scale=none")
    scored = groups(policy, prompts, chosen)
    equal = [_with_equal_rewards(group) if i >= 3 else group for i, group in enumerate(scored)]
    _, result = run(policy, chosen, equal)
    # The second minibatch has no advantage at all, and is off-policy after the first.
    assert result.updates == 2


def test_missing_verdicts_and_masked_sequences_do_not_train(policy: Policy, prompts) -> None:
    chosen = recipe("overlong={kind: mask}", "sampling.max_tokens=6")
    scored = groups(policy, prompts, chosen)
    broken = _with_verdict(scored[0], 1, Verdict(math.nan, Status.ERROR))
    batch = build_batch(policy, "arm0", None, [broken, *scored[1:]], chosen)
    completions = [c for g in scored for c in g.group.completions]
    assert batch.length_N[1] == batch.full_length_N[1] == batch.adv_N[1] == 0
    for n, completion in enumerate(completions):
        if completion.finish == "length":
            assert batch.length_N[n] == 0
            assert n == 1 or batch.full_length_N[n] == 6
    assert (batch.length_N == 0).any()


def test_a_batch_of_truncated_completions_takes_no_step(policy: Policy, prompts) -> None:
    chosen = recipe("overlong={kind: mask}", "sampling.max_tokens=1")
    weights, result = run(policy, chosen, groups(policy, prompts, chosen))
    assert (result.updates, result.without_signal) == (0, 2)
    assert all(torch.equal(weights[n], p) for n, p in policy.parameters("arm0").items())


def test_a_step_that_is_not_finite_is_not_taken(
    policy: Policy, prompts, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = recipe("optim.max_nonfinite=2")
    scored = groups(policy, prompts, chosen)
    forward = policy.logprobs

    def poisoned(*args, **kwargs):
        logp_T, entropy_T = forward(*args, **kwargs)
        return logp_T * float("nan") if logp_T.requires_grad else logp_T, entropy_T

    monkeypatch.setattr(policy, "logprobs", poisoned)
    weights, result = run(policy, chosen, scored)
    assert (result.updates, result.nonfinite, result.nonfinite_in_a_row) == (0, 2, 2)
    assert all(torch.equal(weights[n], p) for n, p in policy.parameters("arm0").items())


def test_kl_in_the_reward_lowers_rewards_of_what_moved_away(policy: Policy, prompts) -> None:
    free, tied = recipe(), recipe("kl={beta: 10, kind: k1_reward}")
    scored = groups(policy, prompts, free)
    without = build_batch(policy, "arm0", None, scored, free)
    within = build_batch(policy, "arm0", None, scored, tied)
    own_reference = build_batch(policy, "arm0", "arm0", scored, tied)
    assert not torch.allclose(without.adv_N, within.adv_N)
    assert torch.allclose(without.adv_N, own_reference.adv_N)


def _with_sampler_shift(group: ScoredGroup, shift: float) -> ScoredGroup:
    completions = tuple(
        dataclasses.replace(c, logp=tuple(x + shift for x in c.logp))
        for c in group.group.completions
    )
    rolled = dataclasses.replace(group.group, completions=completions)
    return dataclasses.replace(group, group=rolled)


def _with_equal_rewards(group: ScoredGroup) -> ScoredGroup:
    verdicts = tuple(Verdict(1.0, Status.OK) for _ in group.verdicts)
    return dataclasses.replace(group, verdicts=verdicts, rewards=(1.0,) * len(verdicts))


def _with_verdict(group: ScoredGroup, index: int, verdict: Verdict) -> ScoredGroup:
    verdicts = list(group.verdicts)
    rewards = list(group.rewards)
    verdicts[index], rewards[index] = verdict, verdict.score
    return dataclasses.replace(group, verdicts=tuple(verdicts), rewards=tuple(rewards))
