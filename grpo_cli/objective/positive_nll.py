"""Imitation of the right answers beside the policy loss. Must not import torch."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from grpo_cli.config import Node


class PositiveNll(Node):
    """loss -= weight * mean log-probability over the tokens of the right answers of the step."""

    source: ClassVar[str] = "positive-example LM loss VAPO arXiv:2504.05118 Eq. 12"
    weight: float = Field(0.0, ge=0)
    """Strength, in units of loss per nat (VAPO: 0.1); 0 is off."""

    def formula(self) -> str:
        """The term with its number."""
        return f"-{self.weight:g} mean log pi over right answers" if self.weight else "off"
