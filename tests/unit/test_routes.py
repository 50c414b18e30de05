"""Routing of a mixture of experts: what is found, recorded, replayed and measured."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import Glm4MoeConfig, Glm4MoeForCausalLM

from grpo_cli.batch import build_batch
from grpo_cli.errors import GrpoError
from grpo_cli.policy.policy import Policy, load_policy
from grpo_cli.policy.routing import find_routers, require_routers
from grpo_cli.recipe.load import load
from grpo_cli.recipe.moe import Moe
from grpo_cli.recipe.schema import Lora, Model, Recipe
from grpo_cli.rollout.collect import score
from grpo_cli.rollout.engine import Request
from grpo_cli.rollout.transformers_engine import TransformersEngine
from grpo_cli.types import RolloutGroup, ScoredGroup, Status, Verdict
from grpo_cli.update import update
from grpo_cli.update_result import UpdateResult
from tests.moe_model import KINDS, save_moe

SMALL = (
    "sampling.prompts_per_step=4",
    "sampling.group_size=4",
    "sampling.max_tokens=12",
    "kl.beta=0",
    "optim.minibatches=4",
)
Adapted = dict[str, torch.Tensor]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    made: dict[str, Path] = {}

    def folder(kind: str) -> Path:
        if kind not in made:
            made[kind] = save_moe(tmp_path_factory.mktemp(kind), kind)
        return made[kind]

    return folder


def moe(folder: Path) -> Policy:
    """The model with `arm0` changed away from the base and `arm1` fresh."""
    policy = load_policy(Model(id=str(folder)), "cpu")
    for name in ("arm0", "arm1"):
        policy.add_adapter(name, Lora(), 0)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in policy.parameters("arm0").items():
            if "lora_B" in name:
                parameter += 0.05 * torch.randn(parameter.shape, generator=generator)
    return policy


def recipe(*sets: str) -> Recipe:
    return load("grpo", sets=[*SMALL, *sets]).recipe


def groups(policy: Policy, prompts, chosen: Recipe) -> list[ScoredGroup]:
    """Completions of `arm0`; every other one counts as right."""
    engine, found = TransformersEngine(policy, 64), []
    for prompt in prompts[: chosen.sampling.prompts_per_step]:
        ids = policy.render(prompt.messages)
        some = engine.sample(
            [Request(ids, k, "arm0", chosen.sampling.max_tokens, 1.0, True) for k in range(4)]
        )
        verdicts = tuple(Verdict(float(k % 2), Status.OK) for k in range(4))
        found.append(score(RolloutGroup(prompt, ids, tuple(some)), chosen, verdicts))
    return found


def run(
    policy: Policy, chosen: Recipe, scored: list[ScoredGroup], lr: float = 2.0
) -> tuple[Adapted, UpdateResult]:
    policy.copy_adapter("arm0", "arm1")
    parameters = policy.parameters("arm1")
    optimizer = torch.optim.SGD(parameters.values(), lr=lr)
    batch = build_batch(policy, "arm1", None, scored, chosen)
    result = update(policy, "arm1", None, optimizer, batch, chosen, 0)
    return {name: p.detach().clone() for name, p in parameters.items()}, result


def rerouted(group: ScoredGroup) -> ScoredGroup:
    """The group as from a sampler that used the next expert everywhere."""
    completions = tuple(
        replace(c, routing=(c.routing + 1) % 8)  # type: ignore[operator]
        for c in group.group.completions
    )
    return replace(group, group=replace(group.group, completions=completions))


@pytest.mark.parametrize("kind", KINDS)
def test_routers_and_the_convention_of_their_gate_are_found(folders, kind: str) -> None:
    policy = moe(folders(kind))
    routers = policy.routers
    assert routers is not None
    assert (routers.num_layers, routers.num_experts, routers.top_k) == (2, 8, 2)
    assert routers.renormalised is (kind in ("qwen3", "mixtral"))
    # Replaying what a pass chooses for itself is that pass.
    prompts, completions = [(2, 9, 3)], [(7, 8, 9, 10)]
    with routers.watch() as seen:
        plain, _ = policy.logprobs("arm0", prompts, completions, 1.0)
    with routers.watch(seen.experts()) as again:
        replayed, _ = policy.logprobs("arm0", prompts, completions, 1.0)
    assert torch.equal(seen.experts(), again.experts())
    assert (plain - replayed).abs().max() < 1e-5
    # Other experts are another model, and the hooks rest outside `watch`.
    with routers.watch((seen.experts() + 1) % 8):
        other, _ = policy.logprobs("arm0", prompts, completions, 1.0)
    assert (plain - other).abs().max() > 1e-3
    assert torch.equal(plain, policy.logprobs("arm0", prompts, completions, 1.0)[0])


def test_a_dense_model_has_no_routers_and_no_metrics(policy: Policy, prompts) -> None:
    assert policy.routers is None
    chosen = recipe("optim.minibatches=1")
    scored = groups(policy, prompts, chosen)
    assert all(c.routing is None for g in scored for c in g.group.completions)
    _, result = run(policy, chosen, scored)
    assert not [name for name in result.scalars() if name.startswith("moe/")]
    with pytest.raises(GrpoError, match=r"GR201.*no routers"):
        require_routers(policy.routers, Moe(replay="learner"), "tiny")


@pytest.mark.parametrize("kind", ["qwen3", "qwen3-full"])
def test_the_sampler_records_what_the_learner_chooses(folders, prompts, kind: str) -> None:
    policy = moe(folders(kind))
    chosen = recipe("moe.replay=sampler", "optim.minibatches=1")
    scored = groups(policy, prompts, chosen)
    lengths = set()
    for group in scored:
        for c in group.group.completions:
            length = len(group.group.prompt_ids) + len(c.token_ids) - 1
            assert c.routing is not None
            assert c.routing.shape == (length, 2, 2)
            lengths.add(len(c.token_ids))
    assert len(lengths) > 1, "no row ended early: the test sees too little"
    _, result = run(policy, chosen, scored)
    assert result.scalars()["moe/sampler_drift"] == 0
    assert result.scalars()["ratio/max"] == 1
    for n, logp_T in result.learner_logp.items():
        sampled = scored[n // 4].group.completions[n % 4].logp
        assert logp_T.tolist() == pytest.approx(sampled, abs=1e-4)


def test_replay_of_the_sampler_uses_its_experts_on_both_sides_of_the_ratio(
    folders, prompts
) -> None:
    policy = moe(folders("qwen3"))
    scored = [rerouted(g) for g in groups(policy, prompts, recipe())]
    _, off = run(policy, recipe("optim.minibatches=1"), scored)
    chosen = recipe("moe.replay=sampler", "optim.minibatches=1", "optim.epochs_per_batch=2")
    _, replayed = run(policy, chosen, scored, lr=0.0)
    for n in off.learner_logp:
        assert (off.learner_logp[n] - replayed.learner_logp[n]).abs().max() > 1e-3
    # Nothing moved: with one mask on both sides every ratio is 1, in the second epoch too.
    assert replayed.scalars()["ratio/min"] == replayed.scalars()["ratio/max"] == 1
    assert off.scalars()["moe/sampler_drift"] > 0.5
    assert replayed.scalars()["moe/update_drift"] == 0


def test_replay_of_the_learner_changes_the_later_minibatches(folders, prompts) -> None:
    policy = moe(folders("qwen3"))
    scored = groups(policy, prompts, recipe())
    found = {}
    for replay in ("off", "learner", "sampler"):
        _, result = run(policy, recipe(f"moe.replay={replay}"), scored)
        found[replay] = result.scalars()
        assert found[replay]["moe/update_drift"] > 0
        assert 1 <= found[replay]["moe/load_imbalance"] <= 8 / 2
        assert 0 < found[replay]["moe/router_entropy"] < math.log(8)
    # The experts that changed widen the ratio without replay.
    assert found["off"]["ratio/p99"] != pytest.approx(found["learner"]["ratio/p99"], rel=1e-3)
    # Sampler and old policy chose alike here, so both replays train alike.
    for name, value in found["learner"].items():
        assert found["sampler"][name] == pytest.approx(value, rel=1e-4, abs=1e-6), name


@pytest.mark.parametrize("replay", ["off", "learner", "sampler"])
@pytest.mark.parametrize("objective", ["clip", "gspo"])
def test_micro_batches_change_nothing(folders, prompts, replay: str, objective: str) -> None:
    policy = moe(folders("qwen3"))
    sets = [f"moe.replay={replay}", "optim.minibatches=2", "optim.epochs_per_batch=2"]
    sets += [f"objective={{kind: {objective}, low: 0.2, high: 0.2}}"]
    scored = groups(policy, prompts, recipe(*sets))
    if replay == "sampler":
        scored = [rerouted(scored[0]), *scored[1:]]
    # A small step: a router on the edge between two experts may fall to either side by rounding.
    whole, one = run(policy, recipe(*sets), scored, lr=0.1)
    cut = recipe(*sets, "learner.micro_batch_tokens=1")
    parts, other = run(policy, cut, scored, lr=0.1)
    for name in whole:
        assert (whole[name] - parts[name]).abs().max() < 1e-5, name
    for name, value in one.scalars().items():
        assert other.scalars()[name] == pytest.approx(value, rel=1e-3, abs=1e-4), name


def test_adapters_leave_experts_and_routers_alone(folders) -> None:
    for kind in KINDS:
        policy = load_policy(Model(id=str(folders(kind))), "cpu")
        for name in ("arm0", "arm1"):
            policy.add_adapter(name, Lora(), 0)
        names = {n.split(".lora_")[0].rsplit(".", 1)[-1] for n in policy.parameters("arm1")}
        assert names == {"q_proj", "k_proj", "v_proj", "o_proj"}
        assert len(policy.parameters("arm1")) == 2 * 4 * 2
    for targets in (("q_proj", "gate"), ("down_proj",), ("q_proj", "up_proj")):
        policy = load_policy(Model(id=str(folders("qwen3"))), "cpu")
        with pytest.raises(GrpoError, match=r"GR201.*experts or routers"):
            policy.add_adapter("arm0", Lora(targets=targets), 0)


def test_routers_with_another_gate_are_measured_and_not_replayed() -> None:
    config = Glm4MoeConfig(
        vocab_size=32,
        hidden_size=32,
        intermediate_size=32,
        moe_intermediate_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=16,
        num_local_experts=8,
        num_experts_per_tok=2,
        first_k_dense_replace=1,
        pad_token_id=0,
    )
    model = Glm4MoeForCausalLM(config)
    routers = find_routers(model.base_model, torch.device("cpu"))
    assert routers is not None
    assert (routers.num_layers, routers.renormalised) == (1, None)
    with routers.watch() as seen:
        model(input_ids=torch.arange(5)[None])
    assert seen.experts().shape == (5, 1, 2)
    require_routers(routers, Moe(), "glm")
    with pytest.raises(GrpoError, match=r"GR201.*softmax"):
        require_routers(routers, Moe(replay="sampler"), "glm")


def test_vllm_is_refused_for_replay_of_the_sampler_only() -> None:
    from grpo_cli.rollout.choose import require_routing

    with pytest.raises(GrpoError, match=r"GR241.*vLLM"):
        require_routing(recipe("moe.replay=sampler", "engine.kind=vllm"))
    require_routing(recipe("moe.replay=learner", "engine.kind=vllm"))
    require_routing(recipe("moe.replay=sampler", "engine.kind=transformers"))
