"""A step's groups: prompts on schedule, sampling, verdicts, shaping, dynamic sampling.

Dims: P prompts, G samples per prompt.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice

from grpo_cli.objective.shaping import length_penalty
from grpo_cli.recipe.schema import DynamicSampling, NoFilter, Recipe
from grpo_cli.rollout.engine import Engine, Request
from grpo_cli.seeds import data_index, sample_seed
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
    verify: Callable[[str, str], Verdict],
) -> None:
    """Fill every demand: one batched sampling call per round for all arms together.

    Ends for an arm when it has its groups or has used its rounds; `kept` may then be short, and a
    step trains on what it has.
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
                    )
                    for demand, prompt, prompt_ids in plan
                    for k in range(demand.recipe.sampling.group_size)
                ]
            )
        )
        sampled = time.perf_counter()
        for demand, prompt, prompt_ids in plan:
            size = demand.recipe.sampling.group_size
            group = RolloutGroup(prompt, prompt_ids, tuple(islice(completions, size)))
            scored = score(group, demand.recipe, verify)
            keep = isinstance(demand.recipe.filter, NoFilter) or has_contrast(scored)
            (demand.kept if keep and demand.missing > 0 else demand.dropped).append(scored)
        scored_at = time.perf_counter()
        for demand in waiting:
            demand.rounds += 1
            demand.rollout_s += sampled - start
            demand.verify_s += scored_at - sampled


def score(
    group: RolloutGroup, recipe: Recipe, verify: Callable[[str, str], Verdict]
) -> ScoredGroup:
    """Verdicts of a group, and rewards = score + length penalty (NaN for a missing verdict)."""
    import torch

    verdicts = tuple(verify(c.text, group.prompt.reference) for c in group.completions)
    penalty = length_penalty(
        torch.tensor([len(c.token_ids) for c in group.completions]),
        torch.tensor([is_truncated(c) for c in group.completions]),
        recipe.overlong,
        recipe.sampling.max_tokens,
    )
    rewards = tuple(v.score + p for v, p in zip(verdicts, penalty.tolist(), strict=True))
    return ScoredGroup(group, verdicts, rewards)


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
