"""Arms that cannot differ, and arms that differ in more than the method. Must not import torch."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any

from grpo_cli.errors import GrpoError, Problem
from grpo_cli.recipe.schema import WITHOUT_EFFECT, Recipe
from grpo_cli.rollout.choose import engine_kind

_RULER = (
    *(f"sampling.{key}" for key in ("temperature", "top_p", "top_k", "max_tokens")),
    *("eval", "task", "verifier"),
)
"""Keys that change what a held-out score means."""


def refuse_equal_arms(arms: Sequence[tuple[str, Recipe]]) -> None:
    """Nothing, when every two of the named recipes can end differently.

    Raises:
        GrpoError: GR221 for two arms with the same resolved recipe, GR222 for two whose
            differences cannot reach the policy, each with the reason.
    """
    by_hash: dict[str, list[str]] = {}
    by_effect: dict[str, list[tuple[str, Recipe]]] = {}
    for name, recipe in arms:
        if recipe.hash not in by_hash:
            by_effect.setdefault(_acting(recipe), []).append((name, recipe))
        by_hash.setdefault(recipe.hash, []).append(name)
    problems = [
        Problem(
            "GR221",
            f"arms {_listed(names)} are the same recipe",
            hint="they would give the same numbers; keep one of them",
        )
        for names in by_hash.values()
        if len(names) > 1
    ]
    problems += [_cannot_differ(alike) for alike in by_effect.values() if len(alike) > 1]
    if problems:
        raise GrpoError(*problems)


def arm_warnings(arms: Sequence[tuple[str, Recipe]]) -> list[Problem]:
    """What is legal in this set of arms and known to mislead."""
    found = []
    recipes = [recipe for _, recipe in arms]
    kinds = {recipe.correction.kind for recipe in recipes}
    if len(kinds) > 1 and all(engine_kind(recipe) == "transformers" for recipe in recipes):
        found.append(
            Problem(
                "GW421",
                "sampler and learner share their weights in this engine, so a correction of the "
                "gap between them changes rounding alone",
                hint="compare corrections with `engine.kind: vllm`",
            )
        )
    for key in _RULER:
        values = {json.dumps(_at(recipe.tree(), key), sort_keys=True) for recipe in recipes}
        if len(values) > 1:
            found.append(
                Problem(
                    "GW422",
                    f"arms differ in `{key}`, which also changes how held-out answers are drawn or "
                    "judged",
                    hint="a difference between them is not one of the trained policies alone",
                )
            )
    return found


def is_on_policy(recipe: Recipe) -> bool:
    """Whether the ratio of policy and old policy is always 1: one update per rollout batch."""
    return recipe.optim.minibatches == recipe.optim.epochs_per_batch == 1 and (
        not recipe.correction.bypass
    )


def _acting(recipe: Recipe) -> str:
    """The recipe's hash without what cannot reach its policy."""
    tree = recipe.tree()
    for key in WITHOUT_EFFECT:
        _drop(tree, key)
    if is_on_policy(recipe):
        # Every objective has the gradient -A at ratio 1: the contract of `Objective`.
        del tree["objective"]
    if not recipe.kl.beta:
        tree["kl"] = {"beta": 0.0}
    if recipe.advantage.scale == "none":
        tree["advantage"]["ddof"] = tree["advantage"]["epsilon"] = 0
    if recipe.control.kind == "no_op":
        tree = {key: tree[key] for key in ("model", "sampling", "task", "verifier", "eval")}
    return hashlib.sha256(json.dumps(tree, sort_keys=True).encode()).hexdigest()


def _cannot_differ(arms: Sequence[tuple[str, Recipe]]) -> Problem:
    names = _listed([name for name, _ in arms])
    recipes = [recipe for _, recipe in arms]
    if is_on_policy(recipes[0]) and any(r.objective != recipes[0].objective for r in recipes):
        return Problem(
            "GR222",
            f"arms {names} cannot differ: with one minibatch and one epoch every update is made on "
            "the policy that sampled, so the ratio is always 1 and bounds on it do nothing",
            hint="raise optim.minibatches or optim.epochs_per_batch, as in "
            "`--set optim.minibatches=2`",
        )
    return Problem(
        "GR222",
        f"arms {names} cannot differ: what is unlike in them is switched off by another key",
        hint="`kl.kind` does nothing at `kl.beta: 0`, nor `ddof` at `advantage.scale: none`",
    )


def _listed(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _drop(tree: dict[str, Any], key: str) -> None:
    *path, last = key.split(".")
    for name in path:
        tree = tree[name]
    tree.pop(last, None)


def _at(tree: dict[str, Any], key: str) -> object:
    node: Any = tree
    for name in key.split("."):
        node = node[name]
    return node
