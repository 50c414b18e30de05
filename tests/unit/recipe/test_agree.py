"""Choices that exclude each other, each with what to do instead."""

from __future__ import annotations

import pytest

from grpo_cli.errors import GrpoError
from grpo_cli.recipe.load import load


@pytest.mark.parametrize(
    ("recipe", "sets", "words"),
    [
        ("grpo", ["critic.kind=value"], ["advantage.baseline `critic`", "belong together"]),
        ("grpo", ["advantage.baseline=critic"], ["critic.kind `value`", "belong together"]),
        ("vapo", ["critic={kind: none}"], ["belong together"]),
        ("vapo", ["advantage.scale=group"], ["`group`", "`batch_tokens`"]),
        ("vapo", ["objective={kind: gspo}"], ["`gspo`", "one advantage per sequence", "`clip`"]),
        ("vapo", ["objective={kind: gmpo}"], ["`gmpo`", "one advantage per sequence"]),
        ("vapo", ["correction={kind: opsm, delta: 0.1}"], ["`opsm`", "one advantage per sequence"]),
        ("grpo", ["optim.minibatches=17"], ["optim.minibatches is 17", "16 groups"]),
        (
            "maxrl",
            ["kl={kind: k1_reward, beta: 0.1}"],
            ["advantage.scale `mean`", "change its sign"],
        ),
        (
            "grpo",
            ["correction={kind: tis_token, bypass: true}"],
            ["`tis_token`", "twice", "objective.kind `reinforce`"],
        ),
    ],
)
def test_a_contradiction_is_refused(recipe: str, sets: list[str], words: list[str]) -> None:
    with pytest.raises(GrpoError) as caught:
        load(recipe, sets=sets)
    (problem,) = caught.value.problems
    for word in words:
        assert word in problem.message
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("kind", ["clip", "cispo", "reinforce", "dppo", "sapo", "gspo_token"])
def test_token_level_objectives_take_a_critic(kind: str) -> None:
    assert load("vapo", sets=[f"objective={{kind: {kind}}}"]).recipe.objective.kind == kind
