"""The `Engine` protocol: what a sampler must offer. Must not import torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from grpo_cli.types import Completion


@dataclass(frozen=True, slots=True)
class Request:
    """One completion to draw. `adapter` is None for the base model.

    Example:
        Request(prompt_ids=(1, 17, 4), seed=8231, adapter="dapo", max_tokens=48, temperature=1.0)
    """

    prompt_ids: tuple[int, ...]
    seed: int
    adapter: str | None
    max_tokens: int
    temperature: float
    routing: bool = False
    """Record the experts of a mixture of experts, where the engine can."""
    top_p: float = 1.0
    top_k: int | None = None
    support: bool = False
    """Record which tokens top_k and top_p keep, where the engine can."""


@dataclass(frozen=True, slots=True)
class Scoring:
    """A given sequence to score at temperature 1, as the canary does."""

    adapter: str | None
    prompt_ids: tuple[int, ...]
    completion_ids: tuple[int, ...]


class Engine(Protocol):
    """A sampler. A completion depends on its own request and the weights, not on its neighbours'
    seeds, and the global random state is neither read nor moved."""

    def sample(self, requests: Sequence[Request]) -> list[Completion]:
        """One completion per request, in order, with the exact log-probability of each token."""
        ...

    def score(self, scorings: Sequence[Scoring]) -> list[tuple[float, ...]]:
        """Log-probability (nats) of each completion token, as the sampler sees it."""
        ...

    def sync(self, adapter: str, version: int) -> None:
        """From now on sample `adapter` with the weights of `version` (its optimizer steps)."""
        ...

    def rest(self) -> None:
        """The learner works next: give back what memory can be given back. The next call of
        another method wakes the engine."""
        ...
