"""Sanity arms of an ablation: settings that should not help. Must not import torch."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from grpo_cli.config import Node


class NoControl(Node):
    """An ordinary run."""

    kind: Literal["none"] = "none"


class RandomReward(Node):
    """Training rewards come from a coin instead of the verifier; evaluation keeps the verifier.

    What such an arm gains, it gains from the pipeline and not from the signal: format, length,
    entropy (arXiv:2506.10947 found large gains of this kind). Arms that do not clearly beat it
    show nothing about the verifier.
    """

    kind: Literal["random_reward"] = "random_reward"
    rate: float | None = Field(None, ge=0, le=1)
    """How often the coin pays. `null` is the base model's held-out accuracy before step 1."""


class NoOp(Node):
    """Everything runs, but the learning rate is 0: the arm stays the base model.

    Its spread over seeds is evaluation noise alone; a difference between two of its evaluations
    is a bug.
    """

    kind: Literal["no_op"] = "no_op"


AnyControl = NoControl | RandomReward | NoOp
Control = Annotated[AnyControl, Field(discriminator="kind")]
