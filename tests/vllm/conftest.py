"""One vLLM engine for the whole module: starting it costs seconds, and a process holds one."""

from __future__ import annotations

import importlib.util
import random
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch

from grpo_cli.policy.policy import Policy, load_policy
from grpo_cli.recipe.load import load
from grpo_cli.recipe.schema import Recipe
from grpo_cli.rollout.vllm_engine import VllmEngine

# `make test-vllm` installs it. Importing it here would be too early: the engine sets it up first.
collect_ignore_glob = [] if importlib.util.find_spec("vllm") else ["test_*.py"]

ARMS = ("arm0", "arm1", "arm2")


@dataclass
class Live:
    """The learner with three adapters and the engine that samples them."""

    policy: Policy
    recipe: Recipe
    engine: VllmEngine
    random_states: tuple[tuple, tuple]
    """Before and after the engine was started."""
    notices: list[str] = field(default_factory=list)


def random_state() -> tuple:
    """The global generators that a trainer could draw from."""
    return (
        random.getstate(),
        np.random.get_state()[1].tobytes(),  # noqa: NPY002
        torch.get_rng_state().numpy().tobytes(),
    )


def move(policy: Policy, adapter: str, seed: int, size: float = 0.03) -> None:
    """Give an adapter other weights, as training does."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in policy.parameters(adapter).items():
            if "lora_B" in name:
                parameter += size * torch.randn(parameter.shape, generator=generator)


@pytest.fixture(scope="session")
def live() -> Live:
    recipe = load("dapo", sets=["engine.kind=vllm", "engine.cpu_cache_gib=0.25"]).recipe
    policy = load_policy(recipe.model, "cpu", recipe.learner)
    for number, arm in enumerate(ARMS):
        policy.add_adapter(arm, recipe.lora, number)
        move(policy, arm, number)
    before, notices = random_state(), []
    engine = VllmEngine(policy, recipe, len(ARMS), notices.append)
    states = (before, random_state())
    for arm in ARMS:
        engine.sync(arm, 0)
    return Live(policy, recipe, engine, states, notices)
