"""Which engine a recipe gets on this machine. Must not import torch or vLLM before it has to."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

from grpo_cli.errors import error
from grpo_cli.policy.source import SHIPPED
from grpo_cli.recipe.schema import Recipe

if TYPE_CHECKING:
    from grpo_cli.policy.policy import Policy
    from grpo_cli.rollout.engine import Engine

EngineKind = Literal["transformers", "vllm"]


def engine_kind(recipe: Recipe) -> EngineKind:
    """The engine that `engine.kind: auto` stands for here, or the one that the recipe names."""
    if recipe.engine.kind != "auto":
        return recipe.engine.kind
    # The shipped models are decoded faster than vLLM starts.
    return "vllm" if vllm_is_installed() and recipe.model.id not in SHIPPED else "transformers"


def vllm_is_installed() -> bool:
    """Whether vLLM could be imported; does not import it."""
    return importlib.util.find_spec("vllm") is not None


def require_routing(recipe: Recipe) -> None:
    """Refuse `moe.replay: sampler` with an engine that does not hand the routing over.

    Raises:
        GrpoError: GR241 with vLLM.
    """
    if recipe.moe.replay == "sampler" and engine_kind(recipe) == "vllm":
        raise error(
            "GR241",
            "moe.replay `sampler` needs the experts of every token from the sampler, and this "
            "version does not get them from vLLM",
            hint="--engine transformers, or moe.replay=learner",
        )


def require_support(recipe: Recipe) -> None:
    """Refuse `sampling.keep_sampling_mask` with an engine that does not say what it kept.

    Raises:
        GrpoError: GR241 with vLLM.
    """
    if recipe.sampling.keep_sampling_mask and engine_kind(recipe) == "vllm":
        raise error(
            "GR241",
            "sampling.keep_sampling_mask needs the tokens that top-p and top-k kept at every "
            "position, and this version does not read these from vLLM",
            hint="--engine transformers, or leave sampling.top_p, top_k and keep_sampling_mask out",
        )


def make_engine(
    policy: Policy, recipe: Recipe, max_adapters: int, notice: Callable[[str], None]
) -> Engine:
    """The engine for up to `max_adapters` arms on the policy's base model.

    Raises:
        GrpoError: GR241 when vLLM is asked for and cannot be had with these settings.
    """
    if engine_kind(recipe) == "vllm":
        from grpo_cli.rollout.vllm_engine import VllmEngine

        return VllmEngine(policy, recipe, max_adapters, notice)
    from grpo_cli.rollout.transformers_engine import TransformersEngine

    return TransformersEngine(policy, recipe.engine.batch_rows)
