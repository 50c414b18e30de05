"""What the panel says about one metric."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Area = Literal[
    "reward",
    "groups",
    "exploration",
    "length",
    "reflection",
    "optimisation",
    "system",
    "verifier",
    "evaluation",
    "progress",
]


@dataclass(frozen=True, slots=True)
class MetricInfo:
    """One metric: its name, or a pattern such as `eval/pass_at_{k}`, and what it says.

    `when` names the steps or settings in which it is on record; None is every training step. It may
    still be NaN (null in `metrics.jsonl`, absent in MLflow) where nothing could be counted.
    """

    name: str
    area: Area
    formula: str
    unit: str
    why: str
    healthy: str | None = None
    when: str | None = None
