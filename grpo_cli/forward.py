"""Forward passes of the learner over sequences of a batch. Dims: T completion tokens."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor

from grpo_cli.policy.policy import Policy
from grpo_cli.recipe.schema import Recipe
from grpo_cli.routes import Routes, routes_for
from grpo_cli.types import Batch


@dataclass(frozen=True, slots=True)
class Forward:
    """A policy on the sequences of a batch; `rows` are indices of sequences."""

    policy: Policy
    batch: Batch
    recipe: Recipe
    routes: Routes | None = None
    """With a mixture of experts: how the passes of the trained adapter are routed."""

    def logprobs(
        self, rows: Sequence[int], adapter: str | None, *, entropy_grad: bool = False
    ) -> tuple[Tensor, Tensor]:
        """Log-probability and entropy of every token of the rows, both (T,).

        Where the batch has a support, both are of the distribution renormalised over it, whichever
        the adapter.
        """
        routes = self.routes if self.routes and adapter == self.routes.adapter else None
        support_N = self.batch.support_N
        with routes.during(rows) if routes else nullcontext():
            return self.policy.logprobs(
                adapter,
                [self.batch.prompt_ids_N[n] for n in rows],
                [self.batch.completion_ids_N[n] for n in rows],
                self.recipe.sampling.temperature,
                entropy_grad=entropy_grad,
                support=None if support_N is None else [support_N[n] for n in rows],
            )

    def lengths(self, rows: Sequence[int]) -> list[int]:
        """Tokens of each row."""
        return [len(self.batch.completion_ids_N[n]) for n in rows]

    def by_sequence(self, rows: Sequence[int], value_T: Tensor) -> dict[int, Tensor]:
        """One value per token -> the values of each row."""
        return dict(zip(rows, value_T.split(self.lengths(rows)), strict=True))

    def micro_batches(self, part: Sequence[int]) -> Iterator[list[int]]:
        """Sequences of like length together, the longest first."""

        def total(n: int) -> int:
            return len(self.batch.prompt_ids_N[n]) + len(self.batch.completion_ids_N[n])

        rows: list[int] = []
        for n in sorted(part, key=lambda n: (-total(n), n)):
            if rows and (len(rows) + 1) * total(rows[0]) > self.recipe.learner.micro_batch_tokens:
                yield rows
                rows = []
            rows.append(n)
        if rows:
            yield rows


def forward_of(policy: Policy, batch: Batch, recipe: Recipe, adapter: str) -> Forward:
    """The passes that train `adapter` on the batch."""
    routes = routes_for(policy.routers, recipe.moe.replay, adapter, batch)
    return Forward(policy, batch, recipe, routes)


def joined(values: Mapping[int, Tensor], rows: Sequence[int]) -> Tensor:
    """The values of the rows end to end, (T,)."""
    return torch.cat([values[n] for n in rows])
