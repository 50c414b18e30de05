"""Tasks: settings become a stream of prompts. Must not import torch."""

from __future__ import annotations

from typing import Protocol

from grpo_cli.recipe.schema import ArithmeticTask
from grpo_cli.types import Prompt


class Task(Protocol):
    """A stream of training prompts and a fixed list of held-out ones, disjoint by content."""

    size: int
    """Number of training prompts."""

    def train(self, index: int) -> Prompt:
        """The training prompt at `index`, 0 <= index < size: a pure function of `index`."""
        ...

    def held_out(self, n: int) -> tuple[Prompt, ...]:
        """The first `n` held-out prompts, distinct by content, the same on every call."""
        ...


def load_task(settings: ArithmeticTask) -> Task:
    """The task that a recipe's `task` node describes."""
    from grpo_cli.tasks.arithmetic import Arithmetic

    return Arithmetic(tuple(range(settings.min_level, settings.max_level + 1)))
