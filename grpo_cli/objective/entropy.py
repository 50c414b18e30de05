"""What entropy has to do with the loss. Dims: T completion tokens of the optimizer step."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from grpo_cli.config import Node


class NoEntropy(Node):
    """Entropy is only measured."""

    kind: Literal["none"] = "none"
    source: ClassVar[str] = ""

    def formula(self) -> str:
        """The term."""
        return "off"


class EntropyBonus(Node):
    """loss -= coef * mean entropy over the trainable tokens of the optimizer step."""

    kind: Literal["bonus"] = "bonus"
    source: ClassVar[str] = "PPO arXiv:1707.06347 Eq. 9"
    coef: float = Field(1e-3, gt=0)
    """Strength, in units of loss per nat."""

    def formula(self) -> str:
        """The term with its number."""
        return f"-{self.coef:g} mean entropy"


class TopQuantile(Node):
    """Only the tokens with the highest entropy of the optimizer step train; the rest weigh 0.

    The threshold belongs to the whole step: it is found in a first pass, with the policy before the
    batch's first update, so micro-batches cannot change it. The denominator stays.
    """

    kind: Literal["top_quantile"] = "top_quantile"
    source: ClassVar[str] = "arXiv:2506.01939; TRL top_entropy_quantile"
    frac: float = Field(0.2, gt=0, le=1)
    """Share of the tokens that train."""

    def formula(self) -> str:
        """The rule with its number."""
        return f"only the {100 * self.frac:g} % of tokens with the highest entropy"


AnyEntropy = NoEntropy | EntropyBonus | TopQuantile
Entropy = Annotated[AnyEntropy, Field(discriminator="kind")]
