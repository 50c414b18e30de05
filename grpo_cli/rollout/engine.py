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


class Engine(Protocol):
    """A sampler. A completion depends on its own request and the weights, not on its neighbours'
    seeds, and the global random state is neither read nor moved."""

    def sample(self, requests: Sequence[Request]) -> list[Completion]:
        """One completion per request, in order, with the exact log-probability of each token."""
        ...

    def sync(self, adapter: str, version: int) -> None:
        """From now on sample `adapter` with the weights of `version` (its optimizer steps)."""
        ...
