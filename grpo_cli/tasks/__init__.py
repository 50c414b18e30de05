"""Tasks: settings become a stream of prompts. Must not import torch."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Protocol

from grpo_cli.recipe.task_schema import AnyTask, ArithmeticTask, NextTokenTask, ReasoningGymTask
from grpo_cli.tasks.filters import GoldVerifier
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


def load_task(
    settings: AnyTask, verifier: GoldVerifier | None = None, *, train: bool = True
) -> Task:
    """The task that a recipe's `task` node describes.

    Args:
        settings: the node.
        verifier: the recipe's verifier; `filters.unparsable` asks it about every gold.
        train: False reads the held-out rows only, for evaluation; `size` is then 0.

    Raises:
        GrpoError: GR205 when the data is not there, or has rows that cannot be used.
    """
    if isinstance(settings, ArithmeticTask):
        from grpo_cli.tasks.arithmetic import Arithmetic

        levels = tuple(range(settings.min_level, settings.max_level + 1))
        return Arithmetic(levels, settings)
    if isinstance(settings, NextTokenTask):
        from grpo_cli.tasks.next_token import load_next_token

        return load_next_token(settings, train=train)
    if isinstance(settings, ReasoningGymTask):
        from grpo_cli.tasks.reasoning_gym import ReasoningGym

        return ReasoningGym(settings)
    from grpo_cli.tasks.data import load_data

    return load_data(settings, verifier, train=train)


def task_fingerprint(settings: AnyTask) -> str:
    """What a run folder remembers of a task's data, so that resuming on other rows is refused.

    SHA-256 of the local files (hex), or the hub's ids and revisions. Reads files, not the hub.
    """
    if isinstance(settings, ArithmeticTask):
        return "arithmetic"
    if isinstance(settings, NextTokenTask):
        from grpo_cli.tasks.next_token import text_fingerprint

        return text_fingerprint(settings)
    if isinstance(settings, ReasoningGymTask):
        from grpo_cli.tasks.reasoning_gym import gym_fingerprint

        return gym_fingerprint(settings)
    from grpo_cli.tasks.data import places

    parts = []
    for place in places(settings):
        if place is None:
            continue
        if place.file is not None:
            parts.append(hashlib.sha256(Path(place.file).read_bytes()).hexdigest())
        else:
            parts.append(f"{place.hub_id}@{place.revision or 'main'}")
    return "+".join(parts)
