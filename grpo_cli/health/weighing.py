"""The weight of every sequence of a step, worked out again from the recipe and the lengths."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pydantic import TypeAdapter

from grpo_cli.health.explained import Group, Sample
from grpo_cli.objective.advantage import Advantage
from grpo_cli.objective.aggregate import Aggregate, AnyAggregate
from grpo_cli.objective.correction import GeoRs
from grpo_cli.objective.shaping import (
    HardOverlong,
    MaskOverlong,
    NoOverlong,
    Overlong,
    SoftOverlong,
    masks_truncated,
)
from grpo_cli.runfiles import damaged
from grpo_cli.types import Status

FAILED = (Status.TIMEOUT, Status.ERROR)
"""Without a score: such a completion never trains."""


@dataclass(frozen=True, slots=True)
class StoredRecipe:
    """The parts of a stored recipe that decide weights; read one by one, so that a run of another
    version or with a plug-in objective can be explained too."""

    aggregate: AnyAggregate
    overlong: NoOverlong | HardOverlong | MaskOverlong | SoftOverlong
    advantage: str
    geo_rs: GeoRs | None
    filtered: bool
    kl_in_reward: bool
    minibatches: int
    max_tokens: int


def stored_recipe(run: Path) -> StoredRecipe:
    path = run / "recipe.json"
    try:
        tree = json.loads(path.read_bytes())
        correction = tree.get("correction", {"kind": "none"})
        return StoredRecipe(
            aggregate=TypeAdapter(Aggregate).validate_python(tree["aggregate"]),
            overlong=TypeAdapter(Overlong).validate_python(tree.get("overlong", {"kind": "none"})),
            advantage=Advantage.model_validate(tree.get("advantage", {})).formula(),
            geo_rs=GeoRs.model_validate(correction) if correction["kind"] == "geo_rs" else None,
            filtered=tree.get("filter", {}).get("kind", "none") != "none",
            kl_in_reward=tree.get("kl", {}).get("kind") == "k1_reward"
            and tree["kl"].get("beta", 0) > 0,
            minibatches=int(tree["optim"]["minibatches"]),
            max_tokens=int(tree["sampling"]["max_tokens"]),
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as problem:
        raise damaged(path, "it is not the recipe of a run") from problem


def weighed(groups: Sequence[Group], recipe: StoredRecipe) -> list[Group]:
    """The groups with the weight of every sequence, minibatch by minibatch as the update does."""
    import torch

    from grpo_cli.objective.aggregate import weights

    weighed = list(groups)
    for part in sorted({g.minibatch for g in groups if g.minibatch is not None}):
        places = [g.number for g in groups if g.minibatch == part]
        flat = [(n, _out(s, recipe), s) for n in places for s in groups[n].samples]
        first = places[0]
        found = weights(
            torch.tensor([0 if out else s.length for _, out, s in flat]),
            recipe.aggregate,
            recipe.max_tokens,
            full_length_N=torch.tensor([0 if s.status in FAILED else s.length for _, _, s in flat]),
            prompt_N=torch.tensor([n - first for n, _, _ in flat]),
        ).tolist()
        values = iter(zip(flat, found, strict=True))
        for n in places:
            samples = tuple(
                replace(s, out=out, weight=weight)
                for (_, out, s), weight in (next(values) for _ in groups[n].samples)
            )
            weighed[n] = replace(groups[n], samples=samples)
    return weighed


def _out(sample: Sample, recipe: StoredRecipe) -> str | None:
    """Why the sequence is out of the loss, if it is."""
    if sample.status in FAILED:
        return "no verdict"
    if not sample.length:
        return "no token"
    if sample.truncated and masks_truncated(recipe.overlong):
        return "truncated, masked"
    rule = recipe.geo_rs
    if rule is not None and sample.learner_logp:
        drift = sum(sample.learner_logp) - sum(sample.sampler_logp)
        if not rule.low <= math.exp(drift / sample.length) <= rule.high:
            return "rejected by geo_rs"
    return None
