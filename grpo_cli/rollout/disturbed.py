"""A sampler that is wrong on purpose, for tests and demonstrations of the corrections.

`GRPO_DISTURB_SAMPLER=temperature:1.3` makes training sample at 1.3 times the temperature that the
learner assumes. Evaluation is left alone. The run's identity holds the value, so that such a run
cannot be taken for another.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace

from grpo_cli.errors import error
from grpo_cli.rollout.engine import Engine, Request, Scoring
from grpo_cli.types import Completion

VARIABLE = "GRPO_DISTURB_SAMPLER"


@dataclass(frozen=True, slots=True)
class DisturbedEngine:
    """An engine whose temperature is off by `factor`; its log-probabilities are true to that."""

    engine: Engine
    factor: float

    def sample(self, requests: Sequence[Request]) -> list[Completion]:
        """Sample at a temperature other than the one asked for."""
        return self.engine.sample(
            [replace(r, temperature=r.temperature * self.factor) for r in requests]
        )

    def score(self, scorings: Sequence[Scoring]) -> list[tuple[float, ...]]:
        """Undisturbed."""
        return self.engine.score(scorings)

    def sync(self, adapter: str, version: int) -> None:
        """Undisturbed."""
        self.engine.sync(adapter, version)

    def rest(self) -> None:
        """Undisturbed."""
        self.engine.rest()


def disturbance() -> dict[str, str]:
    """What a run must remember of the environment variable; empty when it is not set."""
    value = os.environ.get(VARIABLE, "")
    return {"disturbed_sampler": value} if value else {}


def disturbed(engine: Engine) -> Engine:
    """The engine itself, or a disturbed one when the environment asks for it.

    Raises:
        GrpoError: GR209 when the variable cannot be read.
    """
    value = os.environ.get(VARIABLE, "")
    if not value:
        return engine
    kind, _, number = value.partition(":")
    try:
        factor = float(number)
    except ValueError:
        factor = 0.0
    if kind != "temperature" or not 0 < factor < 100:
        raise error("GR209", f"{VARIABLE}={value} cannot be read", hint="such as temperature:1.3")
    return DisturbedEngine(engine, factor)
