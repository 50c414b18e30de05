"""Prompts on schedule, dynamic sampling and shaping, with a scripted engine: exact cases."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import islice

import pytest

from grpo_cli.recipe.load import load
from grpo_cli.recipe.schema import Recipe
from grpo_cli.rollout.collect import Demand, collect, schedule
from grpo_cli.rollout.engine import Request
from grpo_cli.seeds import sample_seed
from grpo_cli.types import Completion, Finish, Message, Prompt, Status, Verdict


class Numbers:
    """A task whose prompt i is the text of i."""

    def __init__(self, size: int) -> None:
        self.size = size

    def train(self, index: int) -> Prompt:
        return Prompt(f"p{index}", (Message("user", str(index)),), "1", "numbers")

    def held_out(self, n: int) -> tuple[Prompt, ...]:
        raise NotImplementedError


class Script:
    """An engine that answers prompt i, sample k with `answer(i, k)`; counts what was asked."""

    def __init__(self, answer: Callable[[int, int], str], length: int = 3) -> None:
        self.answer, self.length = answer, length
        self.calls: list[list[Request]] = []

    def sync(self, adapter: str, version: int) -> None: ...

    def sample(self, requests: Sequence[Request]) -> list[Completion]:
        self.calls.append(list(requests))
        place: dict[tuple, int] = {}
        out = []
        for request in requests:
            key = (request.adapter, request.prompt_ids)
            k = place[key] = place.get(key, -1) + 1
            text = self.answer(request.prompt_ids[0], k)
            finish = Finish.LENGTH if text == "long" else Finish.STOP
            out.append(Completion((5,) * self.length, text, (-1.0,) * self.length, finish, 0))
        return out


def judge(text: str, reference: str) -> Verdict:
    if text == "error":
        return Verdict(math.nan, Status.ERROR)
    return Verdict(float(text == reference), Status.OK if text != "long" else Status.UNPARSED)


def verify(pairs: Sequence[tuple[str, str]]) -> list[Verdict]:
    return [judge(*pair) for pair in pairs]


def recipe(*sets: str, name: str = "dapo") -> Recipe:
    small = ["sampling.prompts_per_step=4", "sampling.group_size=2", "optim.minibatches=1"]
    return load(name, sets=[*small, *sets]).recipe


def run(engine: Script, chosen: Recipe, size: int = 1000, step: int = 1, arms: int = 1):
    demands = [Demand(f"arm{i}", 0, step, chosen) for i in range(arms)]
    collect(engine, demands, Numbers(size), lambda p: (int(p.messages[0].content),), verify)
    return demands if arms > 1 else demands[0]


def mixed(i: int, k: int) -> str:
    return str(k)  # one right, one wrong


def test_without_a_filter_one_round_takes_everything() -> None:
    engine = Script(lambda i, k: "1")
    got = run(engine, recipe(name="grpo"))
    assert (len(got.kept), len(got.dropped), got.rounds, len(engine.calls)) == (4, 0, 1, 1)


def test_refill_keeps_only_groups_with_contrast() -> None:
    got = run(Script(lambda i, k: str(k) if i % 2 else "1"), recipe())
    assert len(got.kept) == 4
    assert all(int(g.group.prompt.messages[0].content) % 2 for g in got.kept)
    assert got.dropped
    assert got.rounds > 1


def test_rounds_are_capped_and_the_step_is_short() -> None:
    engine = Script(lambda i, k: "1")
    got = run(engine, recipe("filter.max_rounds=3"))
    assert (len(got.kept), got.rounds, len(engine.calls)) == (0, 3, 3)
    # 4 prompts, then 4 / (1/4) = 16 capped at the batch of 4, twice.
    assert len(got.dropped) == 12


def test_a_small_data_set_runs_out_instead_of_looping() -> None:
    got = run(Script(lambda i, k: "1"), recipe(), size=6)
    assert len(got.dropped) <= 6
    assert len({g.group.prompt.id for g in got.dropped}) == len(got.dropped)


def test_seeds_name_step_prompt_and_sample() -> None:
    engine = Script(mixed)
    run(engine, recipe(), step=7)
    for request in engine.calls[0]:
        wanted = [sample_seed(0, 7, f"p{request.prompt_ids[0]}", k) for k in range(2)]
        assert request.seed in wanted
    assert len({r.seed for r in engine.calls[0]}) == len(engine.calls[0])


def test_arms_share_prompts_and_one_call() -> None:
    engine = Script(mixed)
    one, two = run(engine, recipe(), arms=2)
    assert [g.group.prompt for g in one.kept] == [g.group.prompt for g in two.kept]
    assert len(engine.calls) == 1
    assert len(engine.calls[0]) == 16


@pytest.mark.parametrize("step", [1, 2, 50])
def test_the_filter_does_not_move_the_first_prompts(step: int) -> None:
    task = Numbers(100)
    with_filter = list(schedule(recipe(), 3, step, task))[:4]
    without = list(schedule(recipe(name="grpo"), 3, step, task))[:4]
    assert with_filter == without


def test_an_epoch_visits_every_prompt_once() -> None:
    chosen, task = recipe(name="grpo"), Numbers(40)
    seen = [p.id for step in range(1, 11) for p in islice(schedule(chosen, 0, step, task), 4)]
    assert len(seen) == len(set(seen)) == 40


def test_length_penalty_is_added_to_the_reward_and_not_to_the_score() -> None:
    chosen = recipe("overlong={kind: hard, penalty: 0.5}")
    got = run(Script(lambda i, k: "long" if k else "1"), chosen)
    for group in got.kept:
        assert [v.score for v in group.verdicts] == [1, 0]
        assert group.rewards == (1, -0.5)


def test_contrast_is_judged_before_shaping() -> None:
    # Both wrong; one is also too long. The rewards differ, the verdicts do not: no signal.
    chosen = recipe("overlong={kind: hard}", "filter.max_rounds=1")
    got = run(Script(lambda i, k: "long" if k else "0"), chosen)
    assert not got.kept


def test_a_missing_verdict_is_neither_right_nor_wrong() -> None:
    got = run(Script(lambda i, k: "error" if k else "1"), recipe("filter.max_rounds=1"))
    assert not got.kept
    got = run(Script(lambda i, k: "error" if k else "1"), recipe(name="grpo"))
    assert math.isnan(got.kept[0].rewards[1])


def test_a_round_is_one_call_of_the_verifier_for_all_arms() -> None:
    calls: list[list[tuple[str, str]]] = []

    def counted(pairs: Sequence[tuple[str, str]]) -> list[Verdict]:
        calls.append(list(pairs))
        return verify(pairs)

    demands = [Demand(f"arm{i}", 0, 1, recipe()) for i in range(2)]
    render = lambda p: (int(p.messages[0].content),)  # noqa: E731
    collect(Script(mixed), demands, Numbers(1000), render, counted)
    assert [len(pairs) for pairs in calls] == [16]
    for demand in demands:
        for group in demand.kept:
            texts = [c.text for c in group.group.completions]
            assert [v.score for v in group.verdicts] == [float(text == "1") for text in texts]
