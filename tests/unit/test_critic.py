"""The critic on real completions: targets, advantages, updates, what it leaves on disk."""

from __future__ import annotations

import copy
import dataclasses
import math
from pathlib import Path

import pytest
import torch

from grpo_cli.batch import build_batch, minibatches
from grpo_cli.critic import Critic, value_scalars
from grpo_cli.forward import Forward
from grpo_cli.policy.policy import Policy
from grpo_cli.recipe.load import load
from grpo_cli.recipe.schema import Recipe
from grpo_cli.types import Batch, ScoredGroup, Status, Verdict
from grpo_cli.update import update
from tests.unit.test_update import SMALL, groups

TRAINED = ("critic.lr=0.02", "critic.clip=null")


def recipe(*sets: str) -> Recipe:
    return load("ppo", sets=[*SMALL, *sets]).recipe


def critic_of(policy: Policy, chosen: Recipe, name: str) -> Critic:
    return Critic(policy, name, chosen, chosen.critic, 0)


def trained(policy: Policy, chosen: Recipe, scored: list[ScoredGroup], name: str) -> Critic:
    """A critic that has seen the batch before, so that its values differ from token to token."""
    critic = critic_of(policy, chosen, name)
    for _ in range(3):
        batch = build_batch(policy, "arm0", None, scored, chosen, critic)
        critic.update(batch, minibatches(batch, 2))
    return critic


@pytest.fixture
def scored(policy: Policy, prompts) -> list[ScoredGroup]:
    return groups(policy, prompts, recipe())


def batch_of(policy: Policy, chosen: Recipe, scored, critic: Critic) -> Batch:
    return build_batch(policy, "arm0", None, scored, chosen, critic)


def test_a_new_critic_expects_nothing_and_learns_the_targets(policy: Policy, scored) -> None:
    chosen = recipe(*TRAINED)
    critic = critic_of(policy, chosen, "new")
    batch = batch_of(policy, chosen, scored, critic)
    assert all((value == 0).all() for value in batch.value_N.values())
    losses = []
    for _ in range(8):
        batch = batch_of(policy, chosen, scored, critic)
        losses.append(critic.update(batch, minibatches(batch, 2))["value/loss"].value)
    assert losses[-1] < 0.5 * losses[0]
    assert value_scalars(batch)["value/last_right"] > value_scalars(batch)["value/last_wrong"]


def test_advantages_and_targets_by_hand(policy: Policy, scored) -> None:
    chosen = recipe(
        *TRAINED,
        "advantage.scale=none",
        "critic.gamma=0.9",
        "critic.policy_lambda=0.5",
        "critic.critic_lambda=1",
    )
    batch = batch_of(policy, chosen, scored, trained(policy, chosen, scored, "hand"))
    rewards = [r for g in scored for r in g.rewards]
    for n, reward in enumerate(rewards):
        value = [*batch.value_N[n].tolist(), 0.0]
        last = len(value) - 2
        assert len({round(v, 6) for v in value}) > 2, "values are alike: the test sees too little"
        advantage = 0.0
        for t in range(last, -1, -1):
            delta = (reward if t == last else 0.0) + 0.9 * value[t + 1] - value[t]
            advantage = delta + 0.9 * 0.5 * advantage
            assert float(batch.token_adv_N[n][t]) == pytest.approx(advantage, abs=1e-6)
            # With lambda 1 the target is the discounted return.
            want = reward * 0.9 ** (last - t)
            assert float(batch.return_N[n][t]) == pytest.approx(want, abs=1e-6)
        assert float(batch.adv_N[n]) == pytest.approx(float(batch.token_adv_N[n].mean()))


def test_whitened_advantages_weigh_every_token_alike(policy: Policy, scored) -> None:
    chosen = recipe(*TRAINED)
    batch = batch_of(policy, chosen, scored, trained(policy, chosen, scored, "white"))
    adv_T = torch.cat([batch.token_adv_N[n] for n in sorted(batch.token_adv_N)])
    assert float(adv_T.mean()) == pytest.approx(0, abs=1e-6)
    assert float(adv_T.var()) == pytest.approx(1, abs=1e-4)


def test_what_does_not_train_has_no_value(policy: Policy, scored) -> None:
    chosen = recipe("overlong={kind: mask}")
    verdicts = (Verdict(math.nan, Status.ERROR), *scored[0].verdicts[1:])
    broken = dataclasses.replace(
        scored[0], verdicts=verdicts, rewards=(math.nan, *scored[0].rewards[1:])
    )
    batch = batch_of(policy, chosen, [broken, *scored[1:]], critic_of(policy, chosen, "mask"))
    out = {n for n, length in enumerate(batch.length_N.tolist()) if not length}
    assert 0 in out
    assert len(out) > 1, "nothing was truncated: the test sees too little"
    assert set(batch.value_N) == set(range(len(batch.length_N))) - out
    assert (batch.adv_N[sorted(out)] == 0).all()
    assert torch.isfinite(batch.adv_N).all()


def test_kl_is_taken_off_token_by_token(policy: Policy, scored) -> None:
    """With lambda 1 and no value the advantage is what is still to come: reward less KL."""
    sets = ("advantage.scale=none", "critic.policy_lambda=1")
    free = recipe(*sets)
    tied = recipe(*sets, "kl={kind: k1_reward, beta: 2}")
    plain = batch_of(policy, free, scored, critic_of(policy, free, "free"))
    taxed = batch_of(policy, tied, scored, critic_of(policy, tied, "tied"))
    for n, total in enumerate(taxed.kl_N.tolist()):
        cost = plain.token_adv_N[n] - taxed.token_adv_N[n]
        assert float(cost[0]) == pytest.approx(2 * total, abs=1e-5)
    forward = Forward(policy, taxed, tied)
    with torch.no_grad():
        own_T, _ = forward.logprobs([0], "arm0")
        base_T, _ = forward.logprobs([0], None)
    last = float(plain.token_adv_N[0][-1] - taxed.token_adv_N[0][-1])
    assert last == pytest.approx(2 * float(own_T[-1] - base_T[-1]), abs=1e-5)


def test_micro_batches_change_nothing(policy: Policy, scored) -> None:
    found = []
    for tokens in (4096, 1, 200):
        chosen = recipe(*TRAINED, "positive_nll.weight=0.1", f"learner.micro_batch_tokens={tokens}")
        name = f"micro{tokens}"
        policy.add_adapter(name, chosen.lora, 0)
        policy.copy_adapter("arm0", name)
        critic = critic_of(policy, chosen, name)
        parameters = policy.parameters(name)
        optimizer = torch.optim.SGD(parameters.values(), lr=0.1)
        scalars: dict[str, float] = {}
        for _ in range(2):
            batch = build_batch(policy, name, None, scored, chosen, critic)
            result = update(policy, name, None, optimizer, batch, chosen, 0)
            result.add(critic.update(batch, minibatches(batch, 2)))
            scalars = result.scalars() | value_scalars(batch)
        found.append((scalars, {k: p.detach().clone() for k, p in parameters.items()}))
    (want, weights), *others = found
    for scalars, cut in others:
        for name, value in want.items():
            assert scalars[name] == pytest.approx(value, rel=2e-3, abs=2e-4), name
        for name, weight in weights.items():
            assert (weight - cut[name]).abs().max() < 1e-4, name


def test_positive_nll_is_the_mean_over_right_answers(policy: Policy, scored) -> None:
    """Without advantages only imitation is left, and its gradient is that of the plain mean."""
    chosen = recipe("positive_nll.weight=0.3", "optim.minibatches=1")
    policy.copy_adapter("arm0", "arm1")
    parameters = policy.parameters("arm1")
    optimizer = torch.optim.SGD(parameters.values(), lr=0.0)
    batch = batch_of(policy, chosen, scored, critic_of(policy, chosen, "nll"))
    flat = {n: torch.zeros_like(adv) for n, adv in batch.token_adv_N.items()}
    batch = dataclasses.replace(batch, token_adv_N=flat)
    result = update(policy, "arm1", None, optimizer, batch, chosen, 0)
    found = {k: p.grad.clone() for k, p in parameters.items()}
    right = [n for n, is_right in enumerate(batch.right_N.tolist()) if is_right]
    logp_T, _ = Forward(policy, batch, chosen).logprobs(right, "arm1")
    wanted = torch.autograd.grad(-0.3 * logp_T.mean(), list(parameters.values()))
    assert result.scalars()["loss/positive_nll"] == pytest.approx(-logp_T.mean().item(), rel=1e-5)
    norm = torch.stack([g.norm() for g in wanted]).norm()
    scale = min(1.0, float(chosen.optim.max_grad_norm / norm))
    for (name, grad), want in zip(found.items(), wanted, strict=True):
        assert torch.allclose(grad, want * scale, atol=1e-6), name


def test_a_critic_that_is_not_finite_takes_no_step(policy: Policy, scored) -> None:
    chosen = recipe()
    critic = critic_of(policy, chosen, "poison")
    batch = batch_of(policy, chosen, scored, critic)
    poisoned = {n: target * math.nan for n, target in batch.return_N.items()}
    bad = dataclasses.replace(batch, return_N=poisoned)
    assert critic.update(bad, minibatches(bad, 2))["value/nonfinite_frac"].value == 1
    after = batch_of(policy, chosen, scored, critic)
    assert all((value == 0).all() for value in after.value_N.values())


def test_save_and_load(policy: Policy, scored, tmp_path: Path) -> None:
    chosen = recipe(*TRAINED)
    critic = trained(policy, chosen, scored, "saved")
    critic.save(tmp_path / "critic")
    batch = batch_of(policy, chosen, scored, critic)
    other = critic_of(policy, chosen, "loaded")
    other.load(tmp_path / "critic")
    same = batch_of(policy, chosen, scored, other)
    for n, value in batch.value_N.items():
        assert torch.equal(value, same.value_N[n])
    # The optimizer's moments came along: the next step is the same too.
    for one in (critic, other):
        one.update(copy.copy(batch), minibatches(batch, 2))
    for n, value in batch_of(policy, chosen, scored, critic).value_N.items():
        assert torch.equal(value, batch_of(policy, chosen, scored, other).value_N[n])


def test_value_scalars_by_hand() -> None:
    value = {0: torch.tensor([0.5, 1.0]), 2: torch.tensor([0.25])}
    target = {0: torch.tensor([1.0, 1.0]), 2: torch.tensor([0.0])}
    empty = torch.zeros(3)
    batch = Batch(
        *((), (), (), empty, empty, empty, empty),
        value_N=value,
        return_N=target,
        right_N=torch.tensor([True, True, False]),
    )
    found = value_scalars(batch)
    # Targets 1, 1, 0: variance 2/9. Errors 0.5, 0, -0.25: mean 1/12, variance 5/48 - 1/144.
    assert found["value/explained_variance"] == pytest.approx(1 - (5 / 48 - 1 / 144) / (2 / 9))
    assert (found["value/first_right"], found["value/last_right"]) == (0.5, 1.0)
    assert (found["value/first_wrong"], found["value/last_wrong"]) == (0.25, 0.25)
    equal = dataclasses.replace(batch, return_N={0: target[0], 2: torch.tensor([1.0])})
    assert math.isnan(value_scalars(equal)["value/explained_variance"])
