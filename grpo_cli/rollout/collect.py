"""A step's groups: prompts on schedule, sampling, verdicts, shaping, dynamic sampling.

Dims: P prompts, G samples per prompt.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice

from grpo_cli.objective.self_verify import JudgedSelfVerify, judged_reward
from grpo_cli.objective.shaping import length_penalty
from grpo_cli.recipe.schema import DynamicSampling, NoFilter, Recipe
from grpo_cli.rollout.coin import tossed
from grpo_cli.rollout.engine import Engine, Request
from grpo_cli.seeds import data_index, sample_seed
from grpo_cli.self_verdict import answer_part, self_check_of
from grpo_cli.tasks import Task
from grpo_cli.types import Completion, Finish, Prompt, RolloutGroup, ScoredGroup, Verdict


@dataclass(slots=True)
class Demand:
    """One arm's need of groups for one step, and what it has got so far."""

    adapter: str
    run_seed: int
    step: int
    recipe: Recipe
    solved: frozenset[str] = frozenset()
    """Prompts that `filter.pass_rate_ceiling` leaves out."""
    coin_rate: float | None = None
    """How often the coin of a `random_reward` arm pays; None takes the verifier's scores."""
    kept: list[ScoredGroup] = field(default_factory=list)
    dropped: list[ScoredGroup] = field(default_factory=list)
    rounds: int = 0
    rollout_s: float = 0.0
    verify_s: float = 0.0
    _prompts: Iterator[Prompt] | None = None

    @property
    def missing(self) -> int:
        """Groups still needed."""
        return self.recipe.sampling.prompts_per_step - len(self.kept)

    @property
    def open(self) -> bool:
        """Whether another round may be sampled."""
        chosen = self.recipe.filter
        most = chosen.max_rounds if isinstance(chosen, DynamicSampling) else 1
        return self.missing > 0 and self.rounds < most

    def next_prompts(self, task: Task) -> list[Prompt]:
        """The prompts of the next round: first the step's own, then refills.

        A refill asks for what is missing divided by the share of groups kept so far (at least a
        quarter), so that most steps need few rounds. The prompts depend on seed and step alone,
        in the same order for every arm.
        """
        if self._prompts is None:
            self._prompts = schedule(self.recipe, self.run_seed, self.step, task, self.solved)
        made = len(self.kept) + len(self.dropped)
        share = max(len(self.kept) / made, 0.25) if made else 1.0
        count = min(math.ceil(self.missing / share), self.recipe.sampling.prompts_per_step)
        return list(islice(self._prompts, count))


def schedule(
    recipe: Recipe, run_seed: int, step: int, task: Task, solved: frozenset[str] = frozenset()
) -> Iterator[Prompt]:
    """The prompts that a step may use, without repeats: its own batch, then the refill stream.

    The own batch walks through the data epoch by epoch whatever the filter is, so arms with and
    without dynamic sampling see the same first prompts; refills, and what stands in for `solved`
    prompts, come from an order of their own.
    """
    batch = recipe.sampling.prompts_per_step
    seen = set(solved)

    def fresh(stream: str, start: int, count: int) -> Iterator[Prompt]:
        for position in range(start, start + count):
            prompt = task.train(data_index(run_seed, stream, position, task.size))
            if prompt.id not in seen:
                seen.add(prompt.id)
                yield prompt

    # Steps count from 1.
    yield from fresh("data", (step - 1) * batch, batch)
    if isinstance(recipe.filter, DynamicSampling):
        room = recipe.filter.max_rounds * batch
        yield from fresh("refill", (step - 1) * room, room)
    else:
        # Only to stand in for solved prompts, and for the rare prompt that comes twice in a batch.
        yield from fresh("refill", (step - 1) * batch, batch)


def collect(
    engine: Engine,
    demands: Sequence[Demand],
    task: Task,
    render: Callable[[Prompt], tuple[int, ...]],
    verify: Callable[[Sequence[tuple[str, str]]], list[Verdict]],
) -> None:
    """Fill every demand: per round one sampling call and one call of the verifier for all arms.

    `verify` gets (answer, reference) pairs and gives their verdicts in the same order. Ends for an
    arm when it has its groups or has used its rounds; `kept` may then be short, and a step trains
    on what it has.
    """
    while waiting := [demand for demand in demands if demand.open]:
        plan = [
            (demand, prompt, render(prompt))
            for demand in waiting
            for prompt in demand.next_prompts(task)
        ]
        if not plan:
            return
        start = time.perf_counter()
        completions = iter(
            engine.sample(
                [
                    Request(
                        prompt_ids,
                        sample_seed(demand.run_seed, demand.step, prompt.id, k),
                        demand.adapter,
                        demand.recipe.sampling.max_tokens,
                        demand.recipe.sampling.temperature,
                        routing=True,
                        top_p=demand.recipe.sampling.top_p,
                        top_k=demand.recipe.sampling.top_k,
                        support=demand.recipe.sampling.keep_sampling_mask,
                    )
                    for demand, prompt, prompt_ids in plan
                    for k in range(demand.recipe.sampling.group_size)
                ]
            )
        )
        sampled = time.perf_counter()
        groups = [
            RolloutGroup(
                prompt, prompt_ids, tuple(islice(completions, demand.recipe.sampling.group_size))
            )
            for demand, prompt, prompt_ids in plan
        ]
        pairs = [
            (answer_part(c.text, group.prompt), group.prompt.reference)
            for group in groups
            for c in group.completions
        ]
        verdicts = verify(pairs)
        assert len(verdicts) == len(pairs), (len(verdicts), len(pairs))
        left = iter(verdicts)
        for (demand, _, _), group in zip(plan, groups, strict=True):
            own = tuple(islice(left, len(group.completions)))
            if demand.coin_rate is not None:
                own = tossed(own, demand.coin_rate, demand.run_seed, demand.step, group.prompt.id)
            scored = score(group, demand.recipe, own)
            keep = isinstance(demand.recipe.filter, NoFilter) or has_contrast(scored)
            (demand.kept if keep and demand.missing > 0 else demand.dropped).append(scored)
        scored_at = time.perf_counter()
        # Each arm is charged its share of a call that served all.
        tokens: dict[int, int] = {}
        for (demand, _, _), group in zip(plan, groups, strict=True):
            made = sum(len(c.token_ids) for c in group.completions)
            tokens[id(demand)] = tokens.get(id(demand), 0) + made
        total = max(sum(tokens.values()), 1)
        for demand in waiting:
            share = tokens.get(id(demand), 0) / total
            demand.rounds += 1
            demand.rollout_s += share * (sampled - start)
            demand.verify_s += share * (scored_at - sampled)


def score(group: RolloutGroup, recipe: Recipe, verdicts: tuple[Verdict, ...]) -> ScoredGroup:
    """A group with its rewards = score + length penalty (NaN for a missing verdict).

    With `self_verify` the score and the policy's own verdict make up what stands for the score.
    """
    import torch

    penalty = length_penalty(
        torch.tensor([len(c.token_ids) for c in group.completions]),
        torch.tensor([is_truncated(c) for c in group.completions]),
        recipe.overlong,
        recipe.sampling.max_tokens,
    )
    earned = _earned(group, recipe, verdicts)
    rewards = tuple(r + p for r, p in zip(earned, penalty.tolist(), strict=True))
    return ScoredGroup(group, verdicts, rewards)


def _earned(group: RolloutGroup, recipe: Recipe, verdicts: tuple[Verdict, ...]) -> list[float]:
    """Each completion's reward before length shaping."""
    method = recipe.self_verify
    if not isinstance(method, JudgedSelfVerify):
        return [v.score for v in verdicts]
    checks = [self_check_of(c, group.prompt) for c in group.completions]
    return [
        judged_reward(v.score, check.said if check else None, method)
        for v, check in zip(verdicts, checks, strict=True)
    ]


def has_contrast(scored: ScoredGroup) -> bool:
    """Whether the verifier's scores differ within the group (DAPO Eq. 11: 0 < #correct < G).

    Judged on correctness, before shaping: a group that differs in length alone is no signal.
    """
    return len({v.score for v in scored.verdicts if not v.missing}) > 1


def pass_rate(scored: ScoredGroup) -> float:
    """Mean score of the group's verdicts, NaN without any."""
    scores = [v.score for v in scored.verdicts if not v.missing]
    return sum(scores) / len(scores) if scores else math.nan


def is_truncated(completion: Completion) -> bool:
    """Whether the length limit ended the completion."""
    return completion.finish is Finish.LENGTH
